"""What an engaged switch stops: which calls, of which part of their callers."""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

ALL_PERCENT = 100
NOBODY = ALL_PERCENT - 1  # the bucket of calls that name nobody: only a whole switch stops them


@dataclass(frozen=True, slots=True)
class SwitchRule:
    """An engaged switch; ``named`` are the dimensions it names, none of them for everything.

    ``percent`` of the callers are stopped, always the same ones; ``cuts_streams``: answers that are
    under way are cut too.
    """

    named: tuple[tuple[str, str], ...]
    reason: str
    ends_at: dt.datetime | None
    percent: int = ALL_PERCENT
    cuts_streams: bool = False

    def stops(self, values: Mapping[str, str], now: dt.datetime) -> bool:
        running = self.ends_at is None or now < self.ends_at
        named = running and all(values.get(name) == value for name, value in self.named)
        return named and (self.percent >= ALL_PERCENT or bucket(values) < self.percent)


def bucket(values: Mapping[str, str]) -> int:
    """Which hundredth of all callers this one belongs to: 0 to 99, the same in every process.

    A caller is a user, in whichever session; else a session; else a tenant as a whole. Calls that
    name nobody cannot be told apart, so that a drill for one in a hundred would stop them all: they
    are in the last hundredth.
    """
    person = values.get("user") or values.get("session") or ""
    tenant = values.get("tenant") or ""
    if not person and not tenant:
        return NOBODY
    kind = "user" if values.get("user") else "session"
    return zlib.crc32(f"{tenant}\x00{kind}\x00{person}".encode("utf-8", "replace")) % ALL_PERCENT
