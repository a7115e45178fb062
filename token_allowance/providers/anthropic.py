"""Anthropic's messages."""

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
from token_allowance.usage import Usage

_INPUT_FIELDS = ("system", "messages", "tools", "output_config", "output_format")


@dataclass(frozen=True, slots=True)
class Messages:
    """``POST …/v1/messages``. Its streams always carry their usage."""

    family: str = "anthropic"
    api: str = "messages"

    def request(self, body: Mapping[str, Any], counting: Counting = ORDINARY) -> ModelRequest:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise ValueError("the messages request names no model")
        stream = body.get("stream") is True
        return ModelRequest(
            model=model,
            input_tokens=sum(
                message_tokens(body[name], self.family, counting)
                for name in _INPUT_FIELDS
                if body.get(name)
            ),
            max_output_tokens=ceiling(body.get("max_tokens")),
            stream=stream,
            service_tier=label(body.get("service_tier")),
            usage_requested=stream,
        )

    def ask_usage(self, body: dict[str, Any]) -> dict[str, Any] | None:
        return None

    def is_usage_only(self, data: bytes) -> bool:
        return False

    def response(self, body: bytes) -> Report:
        answer = record(body)
        if answer is None:  # something was answered that we cannot read: never silently free
            flags = ("unparsed", "usage_missing")
            return Report(None, flags=flags, delivered=bool(body.strip()), complete=True)
        reader = _MessageReader(self.family)
        reader.read_whole(answer)
        return reader.report()

    def reader(self) -> Reader:
        return _MessageReader(self.family)


class _MessageReader:
    def __init__(self, family: str) -> None:
        self._delivered = Delivered(family)
        self._model = self._service_tier = self._request_id = ""
        self._counts: dict[str, Any] = {}
        self._usage_is_final = False
        self._stopped = self._failed = self._unparsed = False

    def event(self, data: bytes, name: str = "") -> None:
        if (event := record(data)) is None:
            self._unparsed |= bool(data)
            self._failed |= name == "error"
            return
        match event.get("type") or name:
            case "message_start":
                self._start(mapping(event.get("message")))
            case "content_block_start":
                self._count_block(mapping(event.get("content_block")))
            case "content_block_delta":
                self._count_delta(mapping(event.get("delta")))
            case "message_delta":
                counts = mapping(event.get("usage"))
                self._merge(counts)
                self._usage_is_final |= counts.get("output_tokens") is not None
            case "message_stop":
                self._stopped = True
            case "error":
                self._failed = True

    def read_whole(self, answer: Mapping[str, Any]) -> None:
        self._failed = answer.get("type") == "error"
        self._identify(answer)
        for block in mappings(answer.get("content")):
            self._count_block(block)
        counts = mapping(answer.get("usage"))
        self._merge(counts)
        self._usage_is_final = counts.get("output_tokens") is not None
        self._stopped = True

    def report(self) -> Report:
        complete = (self._stopped or self._usage_is_final) and not self._failed
        usage, flags = read_usage(self._counts)
        if complete and not self._usage_is_final:  # the input alone is no account of a whole answer
            usage = None
        if self._unparsed:
            flags += ("unparsed",)
        if complete and usage is None:
            flags += ("usage_missing",)
        return Report(
            usage=usage,
            model=self._model,
            service_tier=self._service_tier,
            request_id=self._request_id,
            raw=numbers(self._counts),
            flags=flags,
            delivered=self._delivered.any,
            delivered_tokens=self._delivered.tokens,
            complete=complete,
            input_reported=usage is not None and usage.input_tokens > 0,
            failed=self._failed,
        )

    def _start(self, message: Mapping[str, Any]) -> None:
        self._identify(message)
        counts = dict(mapping(message.get("usage")))
        counts.pop("output_tokens", None)  # a placeholder, written before there is any output (C38)
        self._merge(counts)

    def _identify(self, message: Mapping[str, Any]) -> None:
        self._model = label(message.get("model"))
        self._request_id = label(message.get("id"))

    def _merge(self, counts: Mapping[str, Any]) -> None:
        """Per field, the last figure that is not null: they are cumulative (case C28)."""
        self._service_tier = label(counts.get("service_tier")) or self._service_tier
        for name, value in counts.items():
            if isinstance(value, dict):
                given = {key: item for key, item in value.items() if item is not None}
                self._counts[name] = {**mapping(self._counts.get(name)), **given}
            elif value is not None:
                self._counts[name] = value

    def _count_block(self, block: Mapping[str, Any]) -> None:
        for name in ("text", "thinking", "name"):
            self._delivered.add(block.get(name))
        self._delivered.add_value(block.get("input"))

    def _count_delta(self, delta: Mapping[str, Any]) -> None:
        """Tool arguments come in halves and are only measured, never parsed (case C36)."""
        before = self._delivered.characters
        for name in ("text", "thinking", "partial_json"):
            self._delivered.add(delta.get(name))
        if self._delivered.characters > before:
            self._usage_is_final = False


def read_usage(counts: Mapping[str, Any]) -> tuple[Usage | None, tuple[str, ...]]:
    """The normal form of an Anthropic usage object, and its flags. None if it says nothing.

    Its ``input_tokens`` leaves the cache out, so all input is the sum of three (cases C01, C02).
    Cache writes are the short kind where the split does not say otherwise (case C05).
    """
    figures = Figures(counts)
    short = figures.get("cache_creation", "ephemeral_5m_input_tokens")
    long = figures.get("cache_creation", "ephemeral_1h_input_tokens")
    split = (short or 0) + (long or 0)
    cache_write = figures.get("cache_creation_input_tokens")
    if cache_write is None:
        cache_write = split
    figures.within(split, cache_write)
    cache_write = max(cache_write, split)
    cache_read = figures.get("cache_read_input_tokens") or 0
    output = figures.get("output_tokens") or 0
    thinking = figures.get("output_tokens_details", "thinking_tokens") or 0
    usage = Usage(
        input_tokens=(figures.get("input_tokens") or 0) + cache_read + cache_write,
        output_tokens=output,
        cache_read_tokens=cache_read,
        cache_write_tokens=cache_write,
        cache_write_1h_tokens=long or 0,
        reasoning_tokens=figures.within(thinking, output),
    )
    flags = ["anomaly"] if figures.anomaly else []
    if cache_write and short is None and long is None:
        flags.append("cache_ttl_assumed")
    if output and not usage.input_tokens:
        flags.append("input_missing")
    return usage or None, tuple(flags)
