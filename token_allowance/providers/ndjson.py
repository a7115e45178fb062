"""Framing of newline-delimited JSON: one line is one event."""

from __future__ import annotations

from token_allowance.providers.sse import LARGEST_EVENT_BYTES, Frame


class LineFramer:
    """Cuts a stream of bytes into lines, for any division of the stream into chunks.

    The ``raw`` of all frames, those of ``end`` included, is the stream again, byte for byte. Memory
    is bounded by ``largest_event_bytes`` and one chunk.
    """

    def __init__(self, largest_event_bytes: int = LARGEST_EVENT_BYTES) -> None:
        self._largest = largest_event_bytes
        self._held = bytearray()
        self._searched = 0  # bytes of _held in which no line ends
        self._overflowing = False

    def feed(self, chunk: bytes) -> list[Frame]:
        """The lines that this chunk has completed, in order."""
        held = self._held
        held += chunk
        frames = []
        start = 0
        search_from = self._searched
        while (end := held.find(b"\n", search_from) + 1) > 0:
            frames.append(self._frame(bytes(held[start:end])))
            self._overflowing = False
            start = search_from = end
        if start:
            del held[:start]
        if self._overflowing or len(held) > self._largest:
            self._overflowing = True
            if held:
                frames.append(Frame(bytes(held), oversize=True))
                held.clear()
        self._searched = len(held)
        return frames

    def end(self) -> list[Frame]:
        """The last line, if the stream ended without a line end."""
        rest = bytes(self._held)
        self._held.clear()
        self._searched = 0
        return [self._frame(rest)] if rest else []

    def _frame(self, raw: bytes) -> Frame:
        if self._overflowing or len(raw) > self._largest:
            return Frame(raw, oversize=True)
        return Frame(raw, raw.strip())
