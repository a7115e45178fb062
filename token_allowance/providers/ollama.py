"""Ollama's own API: chat, generate and embed, streamed as lines of JSON unless told otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from token_allowance.estimate import ORDINARY, Counting, message_tokens
from token_allowance.providers.adapter import ModelRequest, Reader, Report
from token_allowance.providers.delivered import Delivered
from token_allowance.providers.fields import (
    Figures,
    ceiling,
    label,
    mapping,
    mappings,
    numbers,
    record,
)
from token_allowance.providers.rewriting import Change, ModelInBody, lowered, with_model
from token_allowance.usage import Usage

_INPUT_FIELDS = (
    *("messages", "tools", "format"),  # chat
    *("prompt", "suffix", "system", "template", "images"),  # generate
    "input",  # embed
)
_FIGURES = (
    *("prompt_eval_count", "prompt_eval_cached_count", "eval_count"),
    *("prompt_eval_duration", "eval_duration", "load_duration", "total_duration"),
)


@dataclass(frozen=True, slots=True)
class Ollama(ModelInBody):
    """``POST …/api/chat``, ``/api/generate`` and ``/api/embed``."""

    family: str = "default"
    api: str = "ollama"
    embeds: bool = False

    def request(self, body: Mapping[str, Any], counting: Counting = ORDINARY) -> ModelRequest:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise ValueError("the Ollama request names no model")
        context = body.get("context")  # an earlier answer as token numbers
        asked = {name: body[name] for name in _INPUT_FIELDS if body.get(name)}
        maximum = ceiling(mapping(body.get("options")).get("num_predict"))
        return ModelRequest(
            model=model,
            input_tokens=message_tokens(asked, self.family, counting)
            + (len(context) if isinstance(context, list) else 0),
            max_output_tokens=0 if self.embeds else maximum,
            stream=not self.embeds and body.get("stream") is not False,
        )

    def changeable(self, body: Mapping[str, Any], path: str) -> Change:
        return Change.NOTHING if self.embeds else ModelInBody.changeable(self, body, path)

    def binds(self, body: Mapping[str, Any]) -> bool:
        """Token numbers and templates are one model's."""
        return any(body.get(name) for name in ("context", "raw", "template"))

    def rewrite(
        self, body: Mapping[str, Any], model: str, max_output_tokens: int | None
    ) -> dict[str, Any]:
        if self.embeds:
            return dict(body)
        new = with_model(body, model)
        if max_output_tokens is None:
            return new
        options = mapping(body.get("options"))
        return {**new, "options": lowered(options, "num_predict", max_output_tokens)}

    def ask_usage(self, body: dict[str, Any]) -> dict[str, Any] | None:
        return None

    def is_usage_only(self, data: bytes) -> bool:
        return False

    def response(self, body: bytes) -> Report:
        reader = _OllamaReader(self.family)
        answer = record(body)
        if answer is not None:
            reader.read(answer, whole=self.embeds)
        else:  # a stream whose type a proxy has changed, or nothing that we can read
            for line in body.splitlines():
                reader.event(line)
        return reader.report(whole=True)

    def reader(self) -> Reader:
        return _OllamaReader(self.family)


class _OllamaReader:
    """Reads the objects of one answer. Only the one that says ``done`` counts (case C32)."""

    def __init__(self, family: str) -> None:
        self._delivered = Delivered(family)
        self._model = ""
        self._usage: Usage | None = None
        self._flags: tuple[str, ...] = ()
        self._raw: dict[str, object] = {}
        self._done = self._failed = self._unparsed = False

    def event(self, data: bytes, name: str = "") -> None:
        if (part := record(data)) is not None:
            self.read(part)
        else:
            self._unparsed |= bool(data.strip())

    def read(self, part: Mapping[str, Any], whole: bool = False) -> None:
        self._failed |= bool(part.get("error"))
        self._model = label(part.get("model")) or self._model
        message = mapping(part.get("message"))
        for text in (part.get("response"), part.get("thinking")):
            self._delivered.add(text)
        for text in (message.get("content"), message.get("thinking")):
            self._delivered.add(text)
        for call in mappings(message.get("tool_calls")):
            self._delivered.add_value(call.get("function"))
        if part.get("done") is True or whole:
            self._done = True
            self._usage, self._flags = read_usage(part)
            self._raw = numbers({name: part[name] for name in _FIGURES if name in part})

    def report(self, whole: bool = False) -> Report:
        complete = (self._done or whole) and not self._failed
        flags = list(self._flags)
        if self._unparsed:
            flags.append("unparsed")
        if complete and self._usage is None:
            flags.append("usage_missing")
        return Report(
            usage=self._usage,
            model=self._model,
            raw=self._raw,
            flags=tuple(flags),
            delivered=self._delivered.any,
            delivered_tokens=self._delivered.tokens,
            complete=complete,
            input_reported=self._usage is not None and self._usage.input_tokens > 0,
            failed=self._failed,
        )


def read_usage(part: Mapping[str, Any]) -> tuple[Usage | None, tuple[str, ...]]:
    """The normal form of the last object's counts, and its flags. None if it says nothing.

    Older servers leave the prompt out when they find it in their cache, newer ones count all of it
    and the cached part once more beside (case C32).
    """
    figures = Figures(part)
    prompt = figures.get("prompt_eval_count") or 0
    output = figures.get("eval_count") or 0
    cached = figures.get("prompt_eval_cached_count") or 0
    usage = Usage(
        input_tokens=prompt,
        output_tokens=output,
        cache_read_tokens=figures.within(cached, prompt),
    )
    flags = ["anomaly"] if figures.anomaly else []
    if output and not prompt:
        flags.append("input_missing")
    return usage or None, tuple(flags)
