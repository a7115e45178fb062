"""What a request names that is kept at the provider, and is read as input although not sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple


class Kind(Enum):
    ANSWER = "answer"  # an earlier answer that is continued; its id is in our ledger
    CONVERSATION = "conversation"
    PROMPT = "prompt"
    CACHE = "cache"
    FILE = "file"
    FILES = "files"  # a store of files that is searched


class Reference(NamedTuple):
    kind: Kind
    id: str


_FIELDS: Final = {
    "previous_response_id": Kind.ANSWER,
    "previous_interaction_id": Kind.ANSWER,
    "conversation": Kind.CONVERSATION,
    "prompt": Kind.PROMPT,
    "cachedContent": Kind.CACHE,
    "cached_content": Kind.CACHE,
}
_NESTED_FIELDS: Final = {"file_id": Kind.FILE, "vector_store_ids": Kind.FILES}
_NESTED: Final = tuple(f'"{name}"'.encode() for name in _NESTED_FIELDS)
_LONGEST_ID: Final = 200
_MOST: Final = 100  # references of one request; no API takes as many


def references(body: Mapping[str, Any], content: bytes) -> tuple[Reference, ...]:
    """The references of a request, each once; ``content`` are the bytes that ``body`` came from."""
    found: dict[Reference, None] = {}
    for name, kind in _FIELDS.items():
        value = body.get(name)
        if isinstance(value, Mapping):
            value = value.get("id")
        elif kind is Kind.PROMPT:  # a prompt in words is text, and an object without id is one too
            continue
        _add(found, kind, value)
    if any(name in content for name in _NESTED):
        for kind, value in _nested(body):
            _add(found, kind, value)
    return tuple(found)[:_MOST]


def _add(found: dict[Reference, None], kind: Kind, value: object) -> None:
    if isinstance(value, str) and 0 < len(value) <= _LONGEST_ID:
        found[Reference(kind, value)] = None


def _nested(body: Mapping[str, Any]) -> Iterator[tuple[Kind, object]]:
    waiting: list[object] = [body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        elif isinstance(node, Mapping):
            for name, child in node.items():
                if name in _NESTED_FIELDS:
                    for value in child if isinstance(child, list) else [child]:
                        yield _NESTED_FIELDS[name], value
                elif isinstance(child, list | Mapping):
                    waiting.append(child)
