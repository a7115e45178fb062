"""OpenAI's responses: plain, streamed, and in the background."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from token_allowance.estimate import ORDINARY, Counting, message_tokens
from token_allowance.providers.adapter import ModelRequest, Reader, Report, Unasked, unreadable
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
from token_allowance.providers.images import drawn
from token_allowance.providers.openai_usage import older_names, read_usage, reported_dollars
from token_allowance.providers.rewriting import ModelInBody, lowered, with_model
from token_allowance.usage import Usage

_INPUT_FIELDS = ("instructions", "input", "tools", "text")
_SEARCHES = ("web_search", "web_search_preview")
_PENDING: Final = frozenset(("queued", "in_progress"))
_ENDS: Final = frozenset(
    ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
)
_PICTURE_MODEL = "gpt-image-1"  # of the picture tool, where the request leaves the choice to it


@dataclass(frozen=True, slots=True)
class Responses(ModelInBody, Unasked):
    """``POST …/responses``. Its streams always carry their usage, in the last event (case C33)."""

    family: str = "openai"
    api: str = "responses"

    def request(self, body: Mapping[str, Any], counting: Counting = ORDINARY) -> ModelRequest:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise ValueError("the responses request names no model")
        stream = body.get("stream") is True
        return ModelRequest(
            model=model,
            input_tokens=sum(
                message_tokens(body[name], self.family, counting)
                for name in _INPUT_FIELDS
                if body.get(name)
            ),
            max_output_tokens=ceiling(body.get("max_output_tokens")),
            stream=stream,
            service_tier=label(body.get("service_tier")),
            usage_requested=stream,
            expected=_expected(body),
        )

    def rewrite(
        self, body: Mapping[str, Any], model: str, max_output_tokens: int | None
    ) -> dict[str, Any]:
        return lowered(with_model(body, model), "max_output_tokens", max_output_tokens)

    def response(self, body: bytes) -> Report:
        answer = record(body)
        if answer is None:
            return unreadable(body)
        reader = _ResponseReader(self.family)
        reader.take(answer)
        return reader.report()

    def reader(self) -> Reader:
        return _ResponseReader(self.family)


class _ResponseReader:
    """Reads events; what counts in the end is the response object inside the last of them."""

    def __init__(self, family: str) -> None:
        self._family = family
        self._delivered = Delivered(family)
        self._answer: Mapping[str, Any] = {}
        self._searches = Searches()
        self._failed = self._unparsed = False

    def event(self, data: bytes, name: str = "") -> None:
        if (event := record(data)) is None:
            self._unparsed |= bool(data) and data.strip() != b"[DONE]"
            self._failed |= name == "error"
            return
        kind = label(event.get("type")) or name
        if kind in _ENDS:
            self._answer = {**self._answer, **mapping(event.get("response"))}
        elif kind == "error":
            self._failed = True
        elif kind.endswith(".delta"):
            self._delivered.add(event.get("delta"))
        elif kind == "response.output_item.done":
            self._searches.count(mapping(event.get("item")))
        elif "response" in event:  # created, queued, in_progress
            self._answer = {**self._answer, **mapping(event.get("response"))}

    def take(self, answer: Mapping[str, Any]) -> None:
        """Read a whole answer."""
        self._answer = answer
        for item in mappings(answer.get("output")):
            _count_item(self._delivered, item)

    def report(self) -> Report:
        answer = self._answer
        counts = mapping(answer.get("usage"))
        tokens, flags = read_usage(older_names(counts))
        usage = with_units(tokens, self._units()) if tokens else None
        status = label(answer.get("status"))
        pending = status in _PENDING
        failed = self._failed or status == "failed" or bool(answer.get("error"))
        complete = (not pending and not failed and bool(answer)) or usage is not None
        if self._unparsed:
            flags += ("unparsed",)
        if complete and usage is None:
            flags += ("usage_missing",)
        in_background = answer.get("background") is True and pending
        others = self._others()
        return Report(
            usage=usage,
            model=label(answer.get("model")),
            service_tier=label(answer.get("service_tier")),
            request_id=label(answer.get("id")),
            raw={**numbers(counts), **numbers({"tool_usage": answer.get("tool_usage")})},
            flags=(*flags, "iterations") if others else flags,
            delivered=self._delivered.any,
            delivered_tokens=self._delivered.tokens,
            complete=complete,
            input_reported=usage is not None and usage.input_tokens > 0,
            failed=failed,
            others=others,
            reported_dollars=reported_dollars(counts),
            deferred_id=label(answer.get("id")) if in_background else "",
        )

    def _units(self) -> Usage:
        """Searches that were made, as reported, else by their items in the output (case C14)."""
        items = mappings(self._answer.get("output"))
        counted = Searches(items) if items else self._searches
        reported = Figures(self._answer).get("tool_usage", "web_search", "num_requests")
        return Usage(
            web_searches=counted.web if reported is None else reported,
            file_searches=counted.file,
        )

    def _others(self) -> tuple[tuple[str, Usage], ...]:
        """Pictures are drawn by a model of their own, whose tokens are not in the usage."""
        usage = drawn(mapping(mapping(self._answer.get("tool_usage")).get("image_gen")))
        if usage is None:
            return ()
        tools = mappings(self._answer.get("tools"))
        named = (label(t.get("model")) for t in tools if t.get("type") == "image_generation")
        return ((next(filter(None, named), _PICTURE_MODEL), usage),)


class Searches:
    """How many searches the items of an output have made; one that was only offered makes none."""

    def __init__(self, items: Iterable[Mapping[str, Any]] = ()) -> None:
        self.web = self.file = 0
        for item in items:
            self.count(item)

    def count(self, item: Mapping[str, Any]) -> None:
        if item.get("status") not in (None, "completed"):
            return
        if item.get("type") == "web_search_call":
            action = mapping(item.get("action")).get("type")
            self.web += action in (None, "search")  # opening a page is no search
        self.file += item.get("type") == "file_search_call"


def with_units(tokens: Usage, units: Usage) -> Usage:
    """The tokens of one usage, with the searches of another."""
    return replace(tokens, web_searches=units.web_searches, file_searches=units.file_searches)


def _expected(body: Mapping[str, Any]) -> Usage:
    """Searches at most: as many as tools may be called, or one of each kind that is offered."""
    kinds = [label(tool.get("type")) for tool in mappings(body.get("tools"))]
    most = ceiling(body.get("max_tool_calls")) or 1
    return Usage(
        web_searches=most if any(kind.startswith(_SEARCHES) for kind in kinds) else 0,
        file_searches=most if "file_search" in kinds else 0,
    )


def _count_item(delivered: Delivered, item: Mapping[str, Any]) -> None:
    """Everything in an item of the output that the model wrote, tool arguments unparsed (C36)."""
    for name in ("arguments", "input", "name"):
        delivered.add(item.get(name))
    for part in (*mappings(item.get("content")), *mappings(item.get("summary"))):
        for name in ("text", "refusal"):
            delivered.add(part.get(name))
