"""OpenAI's chat completions, and the many servers that speak them with dialects of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from token_allowance.estimate import ORDINARY, Counting, message_tokens
from token_allowance.providers.adapter import ModelRequest, Reader, Report, unreadable
from token_allowance.providers.delivered import Delivered
from token_allowance.providers.fields import (
    LARGEST_COUNT,
    ceiling,
    label,
    mapping,
    mappings,
    numbers,
    record,
)
from token_allowance.providers.openai_usage import read_usage, reported_dollars
from token_allowance.providers.rewriting import Change, ModelInBody, lowered, with_model
from token_allowance.usage import Usage

_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_DEFAULT_COMPLETION_TOKENS = 16  # the older API's own maximum where a request names none
_THINKS = re.compile(r"(?:ft:)?(?:o[1-9]|gpt-(?:[5-9]|[1-9][0-9]))(?![0-9])")
_MAXIMA = ("max_completion_tokens", "max_tokens")
_INPUT_FIELDS = ("messages", "tools", "functions", "response_format", "prediction")


@dataclass(frozen=True, slots=True)
class ChatCompletions(ModelInBody):
    """``POST …/chat/completions``. ``family`` names the tokenizers of whoever serves it.

    Some servers refuse ``stream_options`` and tell the usage of a stream unasked.
    """

    family: str = "openai"
    api: str = "chat_completions"
    tells_usage_unasked: bool = False

    def request(self, body: Mapping[str, Any], counting: Counting = ORDINARY) -> ModelRequest:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise ValueError("the chat completions request names no model")
        limits = (ceiling(body.get(name)) for name in _MAXIMA)
        stream = body.get("stream") is True
        return ModelRequest(
            model=model,
            input_tokens=sum(
                message_tokens(body[name], self.family, counting)
                for name in _INPUT_FIELDS
                if body.get(name)
            ),
            max_output_tokens=max((limit for limit in limits if limit), default=None),
            choices=ceiling(body.get("n")) or 1,
            stream=stream,
            service_tier=label(body.get("service_tier")),
            usage_requested=stream and _asks_usage(body),
            expected=_expected(body),
        )

    def ask_usage(self, body: dict[str, Any]) -> dict[str, Any] | None:
        if self.tells_usage_unasked or body.get("stream") is not True or _asks_usage(body):
            return None
        options = mapping(body.get("stream_options"))
        return {**body, "stream_options": {**options, "include_usage": True}}

    def binds(self, body: Mapping[str, Any]) -> bool:
        """Sound is one model's, and a router's list of models goes before the one that is named."""
        return _speaks(body) or bool(body.get("models"))

    def rewrite(
        self, body: Mapping[str, Any], model: str, max_output_tokens: int | None
    ) -> dict[str, Any]:
        """OpenAI's thinking models refuse ``max_tokens``, and few others know the newer name."""
        new = with_model(body, model)
        thinks = _thinks(new.get("model"))
        given = [name for name in _MAXIMA if ceiling(new.get(name))]
        for name in given or _MAXIMA[:1] if thinks else given or _MAXIMA[1:]:
            new = lowered(new, name, max_output_tokens)
        if model and thinks and new.get("max_tokens") is not None:
            most = new.pop("max_tokens")
            new["max_completion_tokens"] = new.get("max_completion_tokens") or most
        return new

    def is_usage_only(self, data: bytes) -> bool:
        if not _NO_CHOICES.search(data):  # spares nearly every chunk a second parse
            return False
        chunk = record(data)
        return chunk is not None and chunk.get("choices") == [] and bool(chunk.get("usage"))

    def response(self, body: bytes) -> Report:
        answer = record(body)
        if answer is None:
            return unreadable(body)
        reader = _ChatReader(self.family)
        reader.read(answer)
        return reader.report(whole=True)

    def reader(self) -> Reader:
        return _ChatReader(self.family)


class _ChatReader:
    """Reads chunks, or one whole answer, which has the shape of a single large chunk."""

    def __init__(self, family: str) -> None:
        self._delivered = Delivered(family)
        self._model = self._service_tier = self._request_id = ""
        self._usage: Usage | None = None
        self._usage_flags: tuple[str, ...] = ()
        self._raw: dict[str, object] = {}
        self._reported: Decimal | None = None
        self._begun: set[int] = set()
        self._ended: set[int] = set()  # choices that have given their reason to end
        self._usage_is_final = False
        self._done = self._failed = self._unparsed = False

    def event(self, data: bytes, name: str = "") -> None:
        if data.strip() == b"[DONE]":
            self._done = True
        elif (chunk := record(data)) is not None:
            self.read(chunk, name)
        else:
            self._unparsed |= bool(data)
            self._failed |= name == "error"

    def read(self, chunk: Mapping[str, Any], name: str = "") -> None:
        self._failed |= name == "error" or bool(chunk.get("error"))
        self._model = label(chunk.get("model")) or self._model
        self._service_tier = label(chunk.get("service_tier")) or self._service_tier
        self._request_id = self._request_id or label(chunk.get("id"))
        choices = mappings(chunk.get("choices"))
        grew = False
        for choice in choices:
            grew |= self._read_choice(choice)
        # Where the figures are is a matter of dialect (case C29): beside the choices, in Groq's
        # own object, or inside the last choice. Of several chunks the last that says anything wins.
        places = (chunk, mapping(chunk.get("x_groq")), *choices)
        found = any(self._read_usage(place.get("usage")) for place in places)
        if found or grew:  # figures that come with every chunk are not final while text still comes
            self._usage_is_final = found and (not grew or self._all_finished)

    def report(self, whole: bool = False) -> Report:
        said_so = self._done or self._usage_is_final or self._all_finished
        complete = (whole or said_so) and not self._failed
        flags = list(self._usage_flags)
        if self._unparsed:
            flags.append("unparsed")
        if complete and self._usage is None:
            flags.append("usage_missing")
        return Report(
            usage=self._usage,
            model=self._model,
            service_tier=self._service_tier,
            request_id=self._request_id,
            raw=self._raw,
            flags=tuple(flags),
            delivered=self._delivered.any,
            delivered_tokens=self._delivered.tokens,
            complete=complete,
            input_reported=self._usage is not None and self._usage.input_tokens > 0,
            failed=self._failed,
            reported_dollars=self._reported,
        )

    @property
    def _all_finished(self) -> bool:
        return bool(self._ended) and self._begun <= self._ended

    def _read_usage(self, counts: object) -> bool:
        if not isinstance(counts, dict) or not counts:
            return False
        usage, flags = read_usage(counts)
        if usage is None and self._usage is not None:
            return False
        self._usage, self._usage_flags, self._raw = usage, flags, numbers(counts)
        self._reported = reported_dollars(counts)
        return usage is not None

    def _read_choice(self, choice: Mapping[str, Any]) -> bool:
        """Count what a choice delivers; true if it delivered anything."""
        index = ceiling(choice.get("index")) or 0
        self._begun.add(index)
        if reason := choice.get("finish_reason"):
            self._ended.add(index)
            self._failed |= reason == "error"
        before = self._delivered.characters
        self._delivered.add(choice.get("text"))
        _count_message(self._delivered, mapping(choice.get("delta") or choice.get("message")))
        return self._delivered.characters > before


@dataclass(frozen=True, slots=True)
class Completions(ChatCompletions):
    """``POST …/completions``, the older API. Each of many prompts is answered ``n`` times."""

    api: str = "completions"

    def request(self, body: Mapping[str, Any], counting: Counting = ORDINARY) -> ModelRequest:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise ValueError("the completions request names no model")
        prompts = prompts_of(body.get("prompt"))
        stream = body.get("stream") is True
        suffix = message_tokens(body.get("suffix") or "", self.family, counting)
        written = max(ceiling(body.get("n")) or 1, ceiling(body.get("best_of")) or 1)
        return ModelRequest(
            model=model,
            input_tokens=sum(prompt_tokens(p, self.family, counting) + suffix for p in prompts),
            max_output_tokens=ceiling(body.get("max_tokens")) or _DEFAULT_COMPLETION_TOKENS,
            choices=written * max(1, len(prompts)),
            stream=stream,
            service_tier=label(body.get("service_tier")),
            usage_requested=stream and _asks_usage(body),
        )

    def changeable(self, body: Mapping[str, Any], path: str) -> Change:
        """Few models complete: what a rule means for chats is mostly none of them."""
        return Change.LENGTH

    def rewrite(
        self, body: Mapping[str, Any], model: str, max_output_tokens: int | None
    ) -> dict[str, Any]:
        return lowered(body, "max_tokens", max_output_tokens)


def prompts_of(value: object) -> list[object]:
    """The prompts of an older request, or the inputs of an embedding: texts, or lists of tokens."""
    if not isinstance(value, list):
        return [] if value is None else [value]
    return [value] if value and isinstance(value[0], int) else value


def prompt_tokens(prompt: object, family: str, counting: Counting) -> int:
    """Tokens of a text; a list of numbers is a list of tokens."""
    if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        return len(prompt)
    return message_tokens(prompt, family, counting)


def _expected(body: Mapping[str, Any]) -> Usage:
    """Sound, where it is asked for: then any of the output may be sound."""
    return Usage(output_audio_tokens=LARGEST_COUNT if _speaks(body) else 0)


def _speaks(body: Mapping[str, Any]) -> bool:
    modalities = body.get("modalities")
    return isinstance(modalities, list) and "audio" in modalities


def _thinks(model: object) -> bool:
    """Is it one of OpenAI's own models that think before they answer? A router names it with its
    maker before it."""
    return isinstance(model, str) and bool(_THINKS.match(model.rpartition("/")[2]))


def _asks_usage(body: Mapping[str, Any]) -> bool:
    return mapping(body.get("stream_options")).get("include_usage") is True


def _count_message(delivered: Delivered, message: Mapping[str, Any]) -> None:
    """Everything in a message or delta that the model wrote, tool arguments unparsed (case C36)."""
    content = message.get("content")
    delivered.add(content)
    for part in mappings(content):
        delivered.add(part.get("text"))
    delivered.add(message.get("refusal"))
    delivered.add(message.get("reasoning_content") or message.get("reasoning"))
    delivered.add(mapping(message.get("audio")).get("transcript"))
    calls = [mapping(message.get("function_call"))]
    for call in mappings(message.get("tool_calls")):
        calls += mapping(call.get("function")), mapping(call.get("custom"))
    for call in calls:
        for name in ("name", "arguments", "input"):
            delivered.add(call.get(name))
