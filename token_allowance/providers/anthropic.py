"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from token_allowance.estimate import ORDINARY, Counting, message_tokens
from token_allowance.providers.adapter import ModelRequest, Reader, Report, Unasked, unreadable
from token_allowance.providers.anthropic_usage import read_iterations, read_usage
from token_allowance.providers.delivered import Delivered
from token_allowance.providers.fields import (
    ceiling,
    label,
    mapping,
    mappings,
    numbers,
    record,
)
from token_allowance.providers.rewriting import ModelInBody, lowered, with_model
from token_allowance.usage import Usage

FAST = "fast"  # the speed, which has prices of its own
_INPUT_FIELDS = ("system", "messages", "tools", "output_config", "output_format")
_LEAST_THINKING_TOKENS = 1024  # Anthropic refuses a smaller budget for thinking
_TOOL_PROMPT_TOKENS = 500  # what Anthropic adds of its own to a request with tools


@dataclass(frozen=True, slots=True)
class Messages(ModelInBody, Unasked):
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
            input_tokens=(_TOOL_PROMPT_TOKENS if body.get("tools") else 0)
            + sum(
                message_tokens(body[name], self.family, counting)
                for name in _INPUT_FIELDS
                if body.get(name)
            ),
            max_output_tokens=ceiling(body.get("max_tokens")),
            stream=stream,
            service_tier=FAST if body.get("speed") == FAST else label(body.get("service_tier")),
            usage_requested=stream,
            expected=Usage(web_searches=_most_searches(body)),
        )

    def binds(self, body: Mapping[str, Any]) -> bool:
        """Few models are served fast."""
        return body.get("speed") == FAST

    def rewrite(
        self, body: Mapping[str, Any], model: str, max_output_tokens: int | None
    ) -> dict[str, Any]:
        """A budget for thinking shrinks with the answer, of which it must be a part."""
        before = ceiling(body.get("max_tokens"))
        new = lowered(with_model(body, model), "max_tokens", max_output_tokens)
        thinking = mapping(new.get("thinking"))
        budget = ceiling(thinking.get("budget_tokens"))
        if budget is None or before is None or new["max_tokens"] == before:
            return new
        budget = budget * new["max_tokens"] // before
        if budget < _LEAST_THINKING_TOKENS:
            return {**new, "thinking": {"type": "disabled"}}
        return {**new, "thinking": {**thinking, "budget_tokens": budget}}

    def response(self, body: bytes) -> Report:
        answer = record(body)
        if answer is None:
            return unreadable(body)
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
        usage, others = read_iterations(self._counts, usage)
        if others or mappings(self._counts.get("iterations")):
            flags += ("iterations",)
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
            others=others,
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
        tier = FAST if counts.get("speed") == FAST else label(counts.get("service_tier"))
        self._service_tier = tier or self._service_tier
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


def _most_searches(body: Mapping[str, Any]) -> int:
    """How many searches the request allows; one where a tool names no maximum (case C14)."""
    tools = mappings(body.get("tools"))
    offered = [tool for tool in tools if label(tool.get("type")).startswith("web_search_")]
    return sum(ceiling(tool.get("max_uses")) or 1 for tool in offered)
