"""Framing of server-sent events on bytes, before anything is decoded (case C35)."""

from __future__ import annotations

import re
from dataclasses import dataclass

LARGEST_EVENT_BYTES = 16 * 1024 * 1024

# Two line ends in a row. Each branch begins with a literal: only then does `re` skip the bytes
# between candidates in C.
_END_OF_EVENT = re.compile(rb"\n(?:\n|\r\n?)|\r(?:\n(?:\n|\r\n?)|\r\n?)")
_LONGEST_END = 4
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Frame:
    """One event: ``raw`` is exactly what was received, ``data`` its data lines joined by ``\\n``.

    Comments and blank lines make frames with empty ``data``. An ``oversize`` frame is a piece of
    an event too large to be held: it is to be passed on and not read.
    """

    raw: bytes
    data: bytes = b""
    event: str = ""
    oversize: bool = False


class Framer:
    """Cuts a stream of bytes into events, for any division of the stream into chunks.

    The ``raw`` of all frames, those of ``end`` included, is the stream again, byte for byte. Memory
    is bounded by ``largest_event_bytes`` and one chunk.
    """

    def __init__(self, largest_event_bytes: int = LARGEST_EVENT_BYTES) -> None:
        self._largest = largest_event_bytes
        self._held = bytearray()
        self._searched = 0  # bytes of _held in which no event ends
        self._overflowing = False
        self._first = True

    def feed(self, chunk: bytes) -> list[Frame]:
        """The events that this chunk has completed, in order."""
        held = self._held
        held += chunk
        frames = []
        start = 0
        search_from = max(0, self._searched - _LONGEST_END)
        while end := _END_OF_EVENT.search(held, search_from):
            frames.append(self._frame(bytes(held[start : end.end()])))
            self._overflowing = False
            start = search_from = end.end()
        if start:
            del held[:start]
        if self._overflowing or len(held) > self._largest:
            frames.extend(self._overflow())
        self._searched = len(held)
        return frames

    def end(self) -> list[Frame]:
        """The last event, if the stream ended without the blank line that should close it."""
        rest = bytes(self._held)
        self._held.clear()
        self._searched = 0
        return [self._frame(rest)] if rest else []

    def _frame(self, raw: bytes) -> Frame:
        text = raw
        if self._first:
            self._first = False
            text = raw.removeprefix(_BYTE_ORDER_MARK)
        if self._overflowing or len(raw) > self._largest:
            return Frame(raw, oversize=True)
        data, event = _fields(text)
        return Frame(raw, data, event)

    def _overflow(self) -> list[Frame]:
        """Pass on what is held, but not a line end: with the next one it may close the event."""
        self._overflowing = True
        self._first = False
        tail = bytes(self._held[-2:])
        cut = len(self._held) - len(tail) + len(tail.rstrip(b"\r\n"))
        raw = bytes(self._held[:cut])
        del self._held[:cut]
        return [Frame(raw, oversize=True)] if raw else []


def _fields(raw: bytes) -> tuple[bytes, str]:
    data = []
    event = b""
    for line in raw.splitlines():
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif name == b"event":
            event = value.removeprefix(b" ")
    return b"\n".join(data), event.decode("utf-8", "replace")
