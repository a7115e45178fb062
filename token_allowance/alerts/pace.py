"""When a budget is spent at the pace it is used now: the arithmetic, without a database.

Of two paces the slower is believed. So neither a busy morning nor the last five minutes alone make
a forecast.
"""

from __future__ import annotations

from dataclasses import dataclass

HOUR_SECONDS = 3600
MOMENT_SECONDS = 300
LEAST_SECONDS = 900  # since the window began; before, nothing is said
LEAST_ELAPSED = 10  # percent of the window
LEAST_USED = 25  # percent of the amount: a nightly job is no pace


@dataclass(frozen=True, slots=True)
class Used:
    """Of one budget: since its window began, in the last hour, and in the last five minutes.

    ``left_seconds`` until the window ends; None: never.
    """

    amount: int
    used: int
    elapsed_seconds: int
    left_seconds: int | None
    last_hour: int
    last_moment: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """In how many seconds it is spent. ``soon``: within the hour, as the last minutes are too."""

    seconds: int
    soon: bool


def forecast(now: Used) -> Forecast | None:
    """When it is spent, if that is before its window ends. Windows of an hour are too short."""
    left, elapsed = now.left_seconds, now.elapsed_seconds
    rest, length = now.amount - now.used, elapsed + (left or 0)
    if rest <= 0 or elapsed < LEAST_SECONDS or (left is not None and length <= HOUR_SECONDS):
        return None
    by_hour = _seconds(rest, now.last_hour, min(elapsed, HOUR_SECONDS))
    by_moment = _seconds(rest, now.last_moment, MOMENT_SECONDS)
    by_window = _seconds(rest, now.used, elapsed)
    if by_hour is not None and by_moment is not None:
        seconds = max(by_hour, by_moment)
        if seconds <= HOUR_SECONDS and (left is None or seconds < left):
            return Forecast(seconds, soon=True)
    if left is None or by_hour is None or by_window is None:
        return None
    seconds = max(by_hour, by_window)
    early = elapsed * 100 < length * LEAST_ELAPSED or now.used * 100 < now.amount * LEAST_USED
    return None if early or seconds >= left else Forecast(seconds, soon=False)


def _seconds(rest: int, spent: int, seconds: int) -> int | None:
    """Until the rest is spent as fast as that; None: never."""
    return rest * seconds // spent if spent > 0 else None
