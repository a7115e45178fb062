"""Rolling windows: the last so many seconds before a call, kept in slices.

A call belongs to the slice its moment lies in, by absolute number, for good. A budget counts more
slices than its length has, so no true window of that length ever exceeds the amount, also where
two clocks each differ by up to 0.9 slice from the truth (protocol 14); and the slices that faster
clocks have begun already. A clock that is off by more than a whole window counts elsewhere.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from token_allowance.windows import Span

SLICES: Final = 60  # make up the length
SPARE: Final = 2
BEHIND: Final = SLICES + SPARE  # counted before the current slice
AHEAD: Final = SLICES
KEPT_BEHIND: Final = 2 * BEHIND + SPARE  # nothing is asked of a slice further back
SHORTEST_SECONDS: Final = 60
LONGEST_SECONDS: Final = 366 * 86_400
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LENGTHS: Final = (("day", 86_400, 2), ("hour", 3_600, 1), ("minute", 60, 1), ("second", 1, 1))


def slice_micros(seconds: int) -> int:
    """The length of one slice in microseconds, rounded up."""
    return -(-seconds * 1_000_000 // SLICES)


def slice_at(seconds: int, moment: datetime) -> int:
    """The number of the slice that holds this moment; slice 0 begins in 1970."""
    return (moment - _EPOCH) // _MICROSECOND // slice_micros(seconds)


def start(seconds: int, number: int) -> datetime:
    return _EPOCH + number * slice_micros(seconds) * _MICROSECOND


def numbers(number: int) -> range:
    """The slices that a call in this one is held to: all that a window around it can reach."""
    return range(number - BEHIND, number + AHEAD + 1)


def numbers_kept(number: int) -> range:
    """The slices that some question may still be about."""
    return range(number - KEPT_BEHIND, number + AHEAD + SPARE + 1)


def counted(seconds: int, number: int) -> Span:
    return _span(seconds, numbers(number))


def kept(seconds: int, number: int) -> Span:
    return _span(seconds, numbers_kept(number))


def _span(seconds: int, numbers: range) -> Span:
    return Span(start(seconds, numbers.start), start(seconds, numbers.stop))


def leaves_at(seconds: int, number: int) -> datetime:
    """The moment from which a slice is no longer counted."""
    return start(seconds, number + BEHIND + 1)


def length(seconds: int) -> str:
    """ "24-hour", "30-day", "90-minute": the largest unit without a remainder."""
    for name, size, least in _LENGTHS:
        if seconds % size == 0 and seconds >= least * size:
            return f"{seconds // size}-{name}"
    return f"{seconds}-second"


def checked_seconds(seconds: int) -> int:
    """Return a rolling window's length; ValueError unless it is a minute to 366 days."""
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        raise ValueError(f"a rolling window lasts 60 seconds to 366 days, not {seconds} seconds")
    return seconds
