"""Windows: which stretch of time a call is counted in. Rolling ones are in ``rolling``.

A window follows from the instant, the zone and the anchor alone, never from the window before it.
All calendar windows of one kind tile time: each instant lies in exactly one of them.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import StrEnum
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)
_MINUTE: Final = timedelta(minutes=1)
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
_WEEK: Final = timedelta(weeks=1)
_REMEMBERED_SPANS: Final = 1024


class Window(StrEnum):
    """How long a budget lasts. These spellings only (case C66)."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    TOTAL = "total"
    ROLLING = "rolling"

    @property
    def adjective(self) -> str:
        """The word before "budget" in messages: "user daily budget exceeded"."""
        return _ADJECTIVES[self]


_ADJECTIVES: Final = {
    Window.MINUTE: "per-minute",
    Window.HOUR: "hourly",
    Window.DAY: "daily",
    Window.WEEK: "weekly",
    Window.MONTH: "monthly",
    Window.TOTAL: "total",
    Window.ROLLING: "rolling",
}
CALENDAR: Final = tuple(window for window in Window if window is not Window.ROLLING)


def parse_window(text: str) -> tuple[Window, int]:
    """The window of that exact spelling, and the seconds of a rolling one, else 0 (case C66).

    ValueError names all spellings.
    """
    name, _, seconds = text.partition(":")
    if name == Window.ROLLING and seconds.isdecimal():
        return Window.ROLLING, int(seconds)
    if text not in CALENDAR:
        raise ValueError(not_a_window(text))
    return Window(text), 0


def not_a_window(text: str) -> str:
    return (
        f"{text!r} is not a window. Use one of: {', '.join(CALENDAR)}; or rolling with its length "
        "in seconds (rolling:2592000 is the last 30 days; a month is a calendar month)."
    )


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in UTC, half open: ``start <= t < end``. Both are None for ``total``."""

    start: datetime | None
    end: datetime | None

    def contains(self, at: datetime) -> bool:
        """Whether ``at`` lies within. ValueError if it is naive."""
        at = _utc(at)
        return (self.start is None or self.start <= at) and (self.end is None or at < self.end)

    def seconds_left(self, at: datetime) -> int | None:
        """Seconds from ``at`` to the end, rounded up, at least 1; None if there is no end."""
        at = _utc(at)
        if self.end is None:
            return None
        return max(1, -((at - self.end) // _SECOND))


ALWAYS: Final = Span(None, None)
# The span found last per window, zone and anchor, with its bounds. One entry is replaced as a
# whole, so threads need no lock.
_last: dict[tuple[Window, tzinfo, int], tuple[datetime, datetime, Span]] = {}


def span(window: Window, at: datetime, zone: tzinfo, anchor_day: int = 1) -> Span:
    """The window that contains ``at``, as clocks in ``zone`` show it (case C63).

    ``anchor_day`` opens a week (1 Monday to 7 Sunday) or a month (1 to 31, or the month's last
    day if it is shorter); the other windows ignore it. A day opens when the clock first reaches or
    passes midnight, so it may last 23 or 25 hours. An hour is an hour of elapsed time that begins
    when the clock shows a full one, cut short only where the clock moves by less than an hour.
    Raises ValueError for a naive ``at`` or an anchor out of range.
    """
    if at.tzinfo is not UTC:
        at = _utc(at)
    if window is Window.TOTAL:
        return ALWAYS
    if window is Window.ROLLING:
        raise ValueError("a rolling window has no calendar; its length tells its slices")
    key = (window, zone, anchor_day)
    last = _last.get(key)
    if last is not None and last[0] <= at < last[1]:
        return last[2]
    if window is Window.MINUTE:
        start, end = _even(at, zone, _MINUTE)
    elif window is Window.HOUR:
        start, end = _even(at, zone, _HOUR)
    else:
        _check_anchor(window, anchor_day)
        start, end = _calendar(window, at, zone, anchor_day)
    if len(_last) >= _REMEMBERED_SPANS:
        _last.clear()
    found = Span(start, end)
    _last[key] = (start, end, found)
    return found


def _utc(at: datetime) -> datetime:
    if at.utcoffset() is None:
        raise ValueError(f"an instant needs a time zone, got the naive {at.isoformat()}")
    return at.astimezone(UTC)


def _check_anchor(window: Window, anchor_day: int) -> None:
    highest = {Window.WEEK: 7, Window.MONTH: 31}.get(window)
    if highest is not None and not 1 <= anchor_day <= highest:
        raise ValueError(f"the anchor day of a {window} is 1 to {highest}, not {anchor_day}")


# Windows of days: found on the local calendar, then carried to the instants of its midnights.


def _calendar(
    window: Window, at: datetime, zone: tzinfo, anchor_day: int
) -> tuple[datetime, datetime]:
    day = _opening_day(window, at.astimezone(zone).date(), anchor_day)
    following = _following_day(window, day, anchor_day)
    start, end = _midnight(day, zone), _midnight(following, zone)
    while end <= at:  # the clock went back over midnight: the new window has begun all the same
        following = _following_day(window, following, anchor_day)
        start, end = end, _midnight(following, zone)
    return start, end


def _opening_day(window: Window, day: date, anchor_day: int) -> date:
    """The day on which the window of ``day`` opened."""
    if window is Window.DAY:
        return day
    if window is Window.WEEK:
        return day - timedelta(days=(day.isoweekday() - anchor_day) % 7)
    opening = _in_month(day.year, day.month, anchor_day)
    if opening <= day:
        return opening
    last_of_previous = day.replace(day=1) - _DAY
    return _in_month(last_of_previous.year, last_of_previous.month, anchor_day)


def _following_day(window: Window, opening: date, anchor_day: int) -> date:
    """The day on which the next window opens."""
    if window is Window.DAY:
        return opening + _DAY
    if window is Window.WEEK:
        return opening + _WEEK
    year, month = divmod(opening.year * 12 + opening.month, 12)  # month counts from 0: the next
    return _in_month(year, month + 1, anchor_day)


def _in_month(year: int, month: int, day: int) -> date:
    return date(year, month, min(day, monthrange(year, month)[1]))


def _midnight(day: date, zone: tzinfo) -> datetime:
    """The first instant at which a clock in ``zone`` shows midnight of ``day`` or later."""
    wanted = datetime.combine(day, time.min)

    def reached(instant: datetime) -> bool:
        return instant.astimezone(zone).replace(tzinfo=None) >= wanted

    instant = wanted.replace(tzinfo=zone).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == wanted:
        return instant  # where midnight comes twice, fold 0 is the first
    # No clock shows this midnight. The two readings of it lie on both sides of the jump.
    before = wanted.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _first(before, instant, reached)


# Windows of elapsed time, aligned with the local clock.


def _even(at: datetime, zone: tzinfo, length: timedelta) -> tuple[datetime, datetime]:
    def shift(instant: datetime) -> timedelta:
        """How far the local clock's windows are off those of UTC."""
        return (instant.astimezone(zone).utcoffset() or timedelta()) % length

    own = shift(at)
    start = at - (at - _EPOCH + own) % length
    end = start + length
    if shift(start) != own:
        start = _first(start, at, lambda instant: shift(instant) == own)
    if shift(end - _MICROSECOND) != own:
        end = _first(at, end, lambda instant: shift(instant) != own)
    return start, end


def _first(low: datetime, high: datetime, holds: Callable[[datetime], bool]) -> datetime:
    """The first instant up to ``high`` for which ``holds``, where it turns true once."""
    steps = range((high - low) // _MICROSECOND)
    return (
        low + bisect_left(steps, True, key=lambda n: holds(low + n * _MICROSECOND)) * _MICROSECOND
    )
