"""Google's generateContent, whole and streamed. The model is in the address, not in the body."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from token_allowance.estimate import ORDINARY, Counting, message_tokens
from token_allowance.providers.adapter import ModelRequest, Reader, Report, Unasked, unreadable
from token_allowance.providers.delivered import Delivered
from token_allowance.providers.fields import (
    LARGEST_COUNT,
    Figures,
    ceiling,
    label,
    mapping,
    mappings,
    numbers,
    record,
)
from token_allowance.providers.rewriting import Change, lowered
from token_allowance.usage import Usage

_INPUT_FIELDS = ("contents", "systemInstruction", "system_instruction", "tools")
_CONFIGS = ("generationConfig", "generation_config")
_MODEL = re.compile(r"(?<=/models/)[^/:]+(?=:(?:generate|streamGenerate)Content\Z)")
_SEARCH_TOOLS = ("google_search", "googleSearch", "googleSearchRetrieval", "enterpriseWebSearch")
_TIERS = {"ON_DEMAND": "", "ON_DEMAND_PRIORITY": "priority", "ON_DEMAND_FLEX": "flex"}


@dataclass(frozen=True, slots=True)
class GenerateContent(Unasked):
    """``POST …/models/{model}:generateContent`` and ``:streamGenerateContent``.

    Every chunk of a stream carries cumulative usage; the last one counts.
    """

    family: str = "gemini"
    api: str = "generate_content"
    streams: bool = False

    def request(self, body: Mapping[str, Any], counting: Counting = ORDINARY) -> ModelRequest:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise ValueError("the address of the generateContent request names no model")
        config = _config(body)
        tools = mappings(body.get("tools"))
        spoken, drawn = (kind in _modalities(body) for kind in ("AUDIO", "IMAGE"))
        return ModelRequest(
            model=model.removeprefix("models/"),
            input_tokens=sum(
                message_tokens(body[name], self.family, counting)
                for name in _INPUT_FIELDS
                if body.get(name)
            ),
            max_output_tokens=ceiling(config.get(_maximum(config))),
            choices=ceiling(config.get("candidateCount")) or 1,
            stream=self.streams,
            service_tier=label(body.get("serviceTier")),
            usage_requested=True,
            expected=Usage(
                web_searches=int(any(name in tool for tool in tools for name in _SEARCH_TOOLS)),
                output_audio_tokens=LARGEST_COUNT if spoken else 0,
                output_image_tokens=LARGEST_COUNT if drawn else 0,
            ),
        )

    def changeable(self, body: Mapping[str, Any], path: str) -> Change:
        """Cached content is one model's, and few models draw or speak."""
        cached = body.get("cachedContent") or body.get("cached_content")
        made = {"AUDIO", "IMAGE"} & set(_modalities(body))
        if cached or made or not _MODEL.search(path):
            return Change.LENGTH
        return Change.ALL

    def rewrite(
        self, body: Mapping[str, Any], model: str, max_output_tokens: int | None
    ) -> dict[str, Any]:
        """The model is in the address."""
        if max_output_tokens is None:
            return dict(body)
        name = next((name for name in _CONFIGS if body.get(name)), _CONFIGS[0])
        config = mapping(body.get(name))
        return {**body, name: lowered(config, _maximum(config), max_output_tokens)}

    def address(self, path: str, model: str) -> str:
        return _MODEL.sub(lambda _: quote(model, safe=""), path) if model else path

    def response(self, body: bytes) -> Report:
        reader = _ContentReader(self.family)
        answer = record(body)
        for chunk in _chunks(body) if answer is None else [answer]:
            reader.read(chunk)
        if answer is None and not reader.has_read:
            return unreadable(body)
        return reader.report(whole=True)

    def reader(self) -> Reader:
        return _ContentReader(self.family)


def _config(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(next((body[name] for name in _CONFIGS if body.get(name)), None))


def _maximum(config: Mapping[str, Any]) -> str:
    """Google takes either way of writing a name, and not both at once."""
    return "max_output_tokens" if "max_output_tokens" in config else "maxOutputTokens"


def _modalities(body: Mapping[str, Any]) -> list[str]:
    config = _config(body)
    given = config.get("responseModalities") or config.get("response_modalities")
    return [kind for kind in given if isinstance(kind, str)] if isinstance(given, list) else []


class _ContentReader:
    def __init__(self, family: str) -> None:
        self._delivered = Delivered(family)
        self._model = self._request_id = self._tier = ""
        self._counts: dict[str, Any] = {}
        self._searches = 0
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._blocked = self._failed = self._unparsed = False
        self.has_read = False

    def event(self, data: bytes, name: str = "") -> None:
        if (chunk := record(data)) is not None:
            self.read(chunk)
        else:
            self._unparsed |= bool(data)
            self._failed |= name == "error"

    def read(self, chunk: Mapping[str, Any]) -> None:
        self.has_read = True
        self._failed |= bool(chunk.get("error"))
        self._model = label(chunk.get("modelVersion")) or self._model
        self._request_id = label(chunk.get("responseId")) or self._request_id
        self._blocked |= bool(mapping(chunk.get("promptFeedback")).get("blockReason"))
        counts = mapping(chunk.get("usageMetadata"))
        self._counts.update({k: v for k, v in counts.items() if v is not None})
        traffic = label(counts.get("trafficType"))
        self._tier = label(counts.get("serviceTier")) or _TIERS.get(traffic, "") or self._tier
        for candidate in mappings(chunk.get("candidates")):
            self._read_candidate(candidate)

    def report(self, whole: bool = False) -> Report:
        ended = bool(self._ended) and self._begun <= self._ended
        complete = (whole or ended or self._blocked) and not self._failed
        usage, flags = read_usage(self._counts)
        if usage is not None and self._searches:
            usage = replace(usage, web_searches=self._searches)
        if self._unparsed:
            flags += ("unparsed",)
        if complete and usage is None:
            flags += ("usage_missing",)
        return Report(
            usage=usage,
            model=self._model,
            service_tier=self._tier,
            request_id=self._request_id,
            raw=numbers({**self._counts, "web_searches": self._searches}),
            flags=flags,
            delivered=self._delivered.any,
            delivered_tokens=self._delivered.tokens,
            complete=complete,
            input_reported=usage is not None and usage.input_tokens > 0,
            failed=self._failed,
        )

    def _read_candidate(self, candidate: Mapping[str, Any]) -> None:
        index = ceiling(candidate.get("index")) or 0
        self._begun.add(index)
        if candidate.get("finishReason"):
            self._ended.add(index)
        queries = mapping(candidate.get("groundingMetadata")).get("webSearchQueries")
        if isinstance(queries, list):
            self._searches = max(self._searches, len(queries))
        for part in mappings(mapping(candidate.get("content")).get("parts")):
            self._delivered.add(part.get("text"))
            self._delivered.add_value(part.get("functionCall"))
            for name in ("executableCode", "codeExecutionResult", "inlineData"):
                self._delivered.add_value(part.get(name))


def read_usage(counts: Mapping[str, Any]) -> tuple[Usage | None, tuple[str, ...]]:
    """The normal form of a ``usageMetadata`` object, and its flags. None if it says nothing.

    The output is the candidates and the thoughts (case C06). Whether what tools have read is
    within the prompt or beside it, the total tells; without one it is beside it (case C11).
    """
    figures = Figures(counts)
    prompt = figures.get("promptTokenCount") or 0
    by_tools = figures.get("toolUsePromptTokenCount") or 0
    thoughts = figures.get("thoughtsTokenCount") or 0
    output = (figures.get("candidatesTokenCount") or 0) + thoughts
    total = figures.get("totalTokenCount")
    if not prompt and not output and total:
        prompt = total
    if by_tools and total == prompt + output:
        figures.within(by_tools, prompt)
        by_tools = 0
    figures.anomaly |= total is None and by_tools > 0
    figures.anomaly |= total is not None and total != prompt + by_tools + output
    given = prompt + by_tools
    cached = figures.within(figures.get("cachedContentTokenCount") or 0, given)
    heard = figures.within(_by_modality(counts, "AUDIO", "prompt", "toolUsePrompt"), given)
    heard_again = figures.within(_by_modality(counts, "AUDIO", "cache"), min(heard, cached))
    spoken = figures.within(_by_modality(counts, "AUDIO", "candidates"), output)
    drawn = figures.within(_by_modality(counts, "IMAGE", "candidates"), output - spoken)
    usage = Usage(
        input_tokens=given,
        output_tokens=output,
        cache_read_tokens=cached,
        reasoning_tokens=thoughts,
        input_audio_tokens=heard,
        output_audio_tokens=spoken,
        cache_read_audio_tokens=heard_again,
        input_image_tokens=min(_by_modality(counts, "IMAGE", "prompt"), given - heard),
        output_image_tokens=drawn,
    )
    flags = ["anomaly"] if figures.anomaly else []
    if output and not given:
        flags.append("input_missing")
    return usage or None, tuple(flags)


def _by_modality(counts: Mapping[str, Any], modality: str, *kinds: str) -> int:
    """The tokens of one modality in the details of these kinds."""
    lists = (mappings(counts.get(f"{kind}TokensDetails")) for kind in kinds)
    details = (detail for found in lists for detail in found)
    return sum(
        Figures(detail).get("tokenCount") or 0
        for detail in details
        if detail.get("modality") == modality
    )


def _chunks(body: bytes) -> list[Mapping[str, Any]]:
    """A stream that was not asked for as events is one list of chunks."""
    try:
        return mappings(json.loads(body))
    except (ValueError, RecursionError):
        return []
