"""The model of the demo's agent: it walks an organisation chart and never says that it is done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from project.provider.request import ModelRequest

TOOL = "direct_reports"
FIRST_NAME = "Ada Park"


def next_name(request: ModelRequest) -> str:
    """Whom to ask about next: breadth first over the names in the tool results, for ever."""
    asked = sum(1 for _ in _calls(request))
    order = list(dict.fromkeys([FIRST_NAME, *_found(request)]))
    return order[asked % len(order)]


def _calls(request: ModelRequest) -> Iterator[Any]:
    for message in request.messages:
        if message.get("role") == "assistant":
            yield from message.get("tool_calls") or ()
            yield from _parts(message, "tool_use")


def _found(request: ModelRequest) -> Iterator[str]:
    for message in request.messages:
        if message.get("role") == "tool":
            yield from _names(message.get("content"))
        for part in _parts(message, "tool_result"):
            yield from _names(part.get("content"))


def _parts(message: dict[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == kind:
            yield part


def _names(content: Any) -> Iterator[str]:
    """The names in a tool result: a JSON list of strings, or of objects with a name."""
    if isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield from _names(part["text"])
        return
    try:
        found = json.loads(content)
    except (TypeError, ValueError):
        return
    for item in found if isinstance(found, list) else ():
        name = item.get("name") if isinstance(item, dict) else item
        if isinstance(name, str) and name:
            yield name
