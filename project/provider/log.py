"""What reached the provider, and what became of it."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field, replace
from typing import Any

ENTRIES_MAX = 100_000
HEADERS_KEPT = ("x-stainless-retry-count", "accept-encoding", "x-trace-id")


@dataclass(slots=True)
class Entry:
    """One model request. Numbers and names only, never text or keys.

    `outcome` is "open" until the exchange ends, then "completed", "error" (an error status),
    "failed" (an error event in a stream), "disconnected" (the client left), "dropped", "reset" or
    "hung" (as scripted), or "broken" (a fault of the provider itself). `usage` is what was sent
    with the end of the answer; a stream that was cut has none.
    """

    number: int
    received_at: float
    path: str
    api: str
    bytes_in: int
    headers: dict[str, str] = field(default_factory=dict)
    model: str = ""
    stream: bool = False
    max_output_tokens: int | None = None
    choices: int = 1
    messages: int = 0
    status: int | None = None
    chunks_sent: int = 0
    usage: dict[str, Any] | None = None
    outcome: str = "open"
    finished_at: float | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """`received` ever (also those no longer kept), `open` now, most `open_peak`, by `outcome`."""

    received: int
    open: int
    open_peak: int
    outcomes: dict[str, int]


class Log:
    """Thread-safe and bounded: the newest 100,000 entries, in order of arrival."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        with self._lock:
            self._received = 0
            self._open: dict[int, Entry] = {}
            self._open_peak = 0
            self._outcomes: Counter[str] = Counter()
            self._entries: deque[Entry] = deque(maxlen=ENTRIES_MAX)

    def open(self, path: str, api: str, bytes_in: int, headers: dict[str, str]) -> Entry:
        kept = {name: headers[name] for name in HEADERS_KEPT if name in headers}
        with self._lock:
            self._received += 1
            entry = Entry(self._received, time.time(), path, api, bytes_in, kept)
            self._entries.append(entry)
            self._open[entry.number] = entry
            self._open_peak = max(self._open_peak, len(self._open))
        return entry

    def finish(self, entry: Entry, outcome: str) -> None:
        """The first word about an entry stands; an entry from before `clear` is ignored."""
        with self._lock:
            if self._open.get(entry.number) is not entry:
                return
            del self._open[entry.number]
            self._outcomes[outcome] += 1
            entry.finished_at = time.time()
            entry.outcome = outcome

    def entries(self) -> list[Entry]:
        with self._lock:
            return [replace(entry) for entry in self._entries]

    def totals(self) -> Totals:
        with self._lock:
            return Totals(self._received, len(self._open), self._open_peak, dict(self._outcomes))

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(entry) for entry in self.entries()]
