"""Counter keys: text that sorts into lock order, narrow scopes first, the hottest (global) last.

A rolling budget has a counter of its own, which is locked, and one for each slice, right after it.
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache

GLOBAL = "global"
OPEN = "-"  # in the place of the start, where a window has none
START_FORMAT = "%Y%m%dT%H%M%SZ"


def scope(values: tuple[tuple[str, str], ...]) -> str:
    return ",".join(f"{name}={_escaped(value)}" for name, value in values) or GLOBAL


def values(scope: str) -> dict[str, str]:
    """The values of a scope as ``scope`` wrote it."""
    pairs = [part.split("=", 1) for part in scope.split(",")] if scope != GLOBAL else []
    return {name: _unescaped(value) for name, value in pairs}


@lru_cache(maxsize=512)  # many budgets share few windows
def written(start: dt.datetime | None) -> str:
    return start.strftime(START_FORMAT) if start else OPEN


def parsed(start: str) -> dt.datetime:
    return dt.datetime.strptime(start, START_FORMAT).replace(tzinfo=dt.UTC)


def of_slice(key: str, number: int) -> str:
    """The key of one slice of a rolling budget."""
    return f"{key[: -len(OPEN)]}{number}"


def whole(key: str) -> str | None:
    """The key of the rolling budget that a slice is of; None if it is no slice's key."""
    before, _, number = key.rpartition("|")
    return f"{before}|{OPEN}" if number.lstrip("-").isdigit() else None


def _escaped(value: str) -> str:
    if "," in value or "|" in value or "%" in value:
        return value.replace("%", "%0").replace(",", "%1").replace("|", "%2")
    return value


def _unescaped(text: str) -> str:
    return text.replace("%2", "|").replace("%1", ",").replace("%0", "%")
