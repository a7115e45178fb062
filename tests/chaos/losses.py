"""What a Redis had acknowledged and forgot before the ledger had taken it over.

A killed process of Redis loses hardly anything: the kernel writes what the process has given it.
So now and then the end of the append-only file is cut off, as a failing machine would leave it.
"""

from __future__ import annotations

import json
import re
from collections import Counter as Counts
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import redis

from tests.redis_servers import Redis
from token_allowance.stores import outbox
from token_allowance.stores.events import Event, place

WORDS = {
    "r": "reserved", "x": "extended", "s": "settled", "v": "released", "e": "expired",
    "c": "conflict",
}  # fmt: skip
END_OF_STEP = b"*1\r\n$4\r\nEXEC\r\n"
APPENDED = re.compile(
    rb"XADD\r\n\$\d+\r\n[^\r]+\r\n\$\d+\r\n(\d+-\d+)\r\n\$1\r\ni\r\n\$36\r\n(.{36})\r\n"
    rb"\$1\r\ns\r\n\$1\r\n(.)\r\n\$1\r\nd\r\n\$(\d+)\r\n"
)


@dataclass(frozen=True)
class Lost:
    """The events that were lost at a time (seconds since 1970), and how."""

    at: float
    how: str
    events: Sequence[Event]

    @cached_property
    def _of_traces(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for id, document in documents(self.events).items():
            found.setdefault(document.get("trace_id", ""), set()).add(id)
        return found

    def calls_of(self, trace: str) -> set[str]:
        """The reservations of this trace among them."""
        return self._of_traces.get(trace, set())


def documents(events: Iterable[Event]) -> dict[str, dict[str, Any]]:
    """What the events say of each reservation, the last of them first."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        said = json.loads(event.document)
        found[event.reservation] = found.get(event.reservation, {}) | said
    return found


def told(losses: Iterable[Lost]) -> dict[str, int]:
    """How many events of each kind."""
    counts = Counts(WORDS[event.kind] for lost in losses for event in lost.events)
    return dict(counts.most_common())


def most(losses: Iterable[Lost], tenant: str, user: str, unit: str) -> int:
    """By how much a budget of this user can be exceeded: by all that the lost calls had in it."""
    found: dict[str, int] = {}
    for lost in losses:
        for id, said in documents(lost.events).items():
            if (said.get("tenant"), said.get("user")) == (tenant, user):
                found[id] = max(found.get(id, 0), _amount(said, unit))
    return sum(found.values())


def _amount(said: dict[str, Any], unit: str) -> int:
    if unit == "calls":
        return 1
    held, used = (
        ("reserved_micros", ("cost_micros",))
        if unit == "cost"
        else ("reserved_tokens", ("input_tokens", "output_tokens"))
    )
    return max(said.get(held) or 0, sum(said.get(name) or 0 for name in used))


def flush(server: Redis, stream: str, after: str) -> list[Event]:
    """FLUSHALL; the events behind the ledger's watermark that are gone with it."""
    with redis.Redis(port=server.port, socket_timeout=5) as client, client.pipeline() as pipe:
        pipe.response_callbacks.clear()
        pipe.xrange(stream, f"({after}")
        pipe.flushall()
        entries, _ = pipe.execute()
    found = []
    for id, pairs in entries:
        fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
        kind, of = fields[b"s"].decode(), fields[b"i"].decode()
        found.append(Event(id.decode(), kind, of, fields[b"d"]))
    return [event for event in found if event.kind in WORDS]


def append_only(server: Redis) -> Path:
    """The file that Redis appends to."""
    files = [*server.folder.glob("appendonlydir/*.incr.aof"), *server.folder.glob("*.aof")]
    return max(files, key=lambda path: (path.stat().st_mtime_ns, path.name))


def cut(file: Path, size: int) -> list[Event]:
    """Let a file be only so long; the events that Redis will not find in it any more."""
    data = file.read_bytes()
    end_of_last = data.rfind(END_OF_STEP, 0, size)
    with file.open("r+b") as handle:
        handle.truncate(size)
    return appended(data[end_of_last + len(END_OF_STEP) :] if end_of_last >= 0 else data)


def appended(data: bytes) -> list[Event]:
    """The events that this part of an append-only file is about."""
    found = []
    for match in APPENDED.finditer(data):
        id, of, kind, length = match.groups()
        document = data[match.end() : match.end() + int(length)]
        found.append(Event(id.decode(), kind.decode(), of.decode(), document))
    return [event for event in found if event.kind in WORDS]


def behind(events: Iterable[Event], mark: str) -> list[Event]:
    """The events that this watermark has not reached."""
    return [event for event in events if place(event.id) > place(mark)]


def watermark(alias: str, prefix: str) -> str:
    return outbox.watermark(alias, prefix)
