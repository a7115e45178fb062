"""One server-sent event of a stream."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, NamedTuple


class Kind(Enum):
    OPENING = 1
    CONTENT = 2
    CLOSING = 3


class Event(NamedTuple):
    kind: Kind
    data: bytes


def sse(document: dict[str, Any], name: str | None = None) -> bytes:
    """The bytes of one event; OpenAI's have no name."""
    data = compact(document)
    return (
        b"data: %b\n\n" % data
        if name is None
        else b"event: %b\ndata: %b\n\n"
        % (
            name.encode(),
            data,
        )
    )


def compact(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )
