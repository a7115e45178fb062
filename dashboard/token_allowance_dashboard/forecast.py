"""What a period will have cost at its end, at the pace of its last days."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_DAYS = 3  # complete ones: of fewer nothing is foretold
PACE_DAYS = 7


@dataclass(frozen=True, slots=True)
class Forecast:
    """Micro-dollars at the end of the period: at the pace of the last days, and at the slowest and
    the fastest of them. ``reaches_at`` is when a limit is reached at that pace."""

    micros: int
    least_micros: int
    most_micros: int
    days: int
    by_day: tuple[int, ...]  # what is spent at the end of each day to come
    reaches_at: dt.datetime | None = None


def forecast(
    spent: int,
    complete: Sequence[int],
    now: dt.datetime,
    end: dt.datetime,
    limit: int | None = None,
) -> Forecast | None:
    """``complete`` are the sums of whole days, the last the newest. None if they are too few."""
    if len(complete) < LEAST_DAYS or end <= now:
        return None
    last = list(complete)[-PACE_DAYS:]
    left = end - now
    day = dt.timedelta(days=1)

    def at(pace: int) -> int:
        return spent + pace * (left // dt.timedelta(seconds=1)) // 86_400

    pace = sum(last) // len(last)
    whole = -(-left // day)
    by_day = (*(spent + pace * n for n in range(1, whole)), at(pace))
    reaches = None
    if limit is not None and spent < limit <= at(pace) and pace:
        reaches = now + day * (limit - spent) / pace
    return Forecast(at(pace), at(min(last)), at(max(last)), len(last), by_day, reaches)
