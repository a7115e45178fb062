"""Periods of time that a screen is about, in a zone: from the address, and back into it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from zoneinfo import ZoneInfo, available_timezones

from token_allowance import conf
from token_allowance.windows import Window, span

CHOICES = {
    "hour": "last hour",
    "24h": "last 24 hours",
    "today": "today",
    "7d": "last 7 days",
    "30d": "last 30 days",
    "month": "this month",
    "last_month": "last month",
    "custom": "from … to …",
}
LENGTHS = {
    "hour": dt.timedelta(hours=1),
    "24h": dt.timedelta(hours=24),
    "7d": dt.timedelta(days=7),
    "30d": dt.timedelta(days=30),
}
LONGEST = dt.timedelta(days=366)
QUARTER = dt.timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Period:
    """From ``start`` until just before ``end``, instants; days are those of ``zone``."""

    name: str
    start: dt.datetime
    end: dt.datetime
    zone: ZoneInfo

    @property
    def words(self) -> str:
        if self.name != "custom":
            return CHOICES[self.name]
        last = self.end.astimezone(self.zone) - dt.timedelta(microseconds=1)
        return f"{self.start.astimezone(self.zone):%-d %b %Y} to {last:%-d %b %Y}"

    @property
    def length(self) -> dt.timedelta:
        return self.end - self.start

    @property
    def before(self) -> Period:
        """The period of the same length just before, to compare with."""
        return Period("custom", self.start - self.length, self.start, self.zone)

    def days(self) -> list[tuple[dt.date, dt.datetime, dt.datetime]]:
        """Each day of it with its part: (date, start, end). A day has 23 to 25 hours."""
        found, start = [], self.start
        while start < self.end:
            day = start.astimezone(self.zone).date()
            end = span(Window.DAY, start, self.zone).end or self.end
            found.append((day, start, min(end, self.end)))
            start = end
        return found


def of(query: Mapping[str, str], now: dt.datetime, default: str = "month") -> Period:
    """The period that an address names; what it names wrongly is the default."""
    zone = zone_of(query)
    name = query.get("range", default)
    if name == "custom" and (found := _custom(query, zone)):
        return found
    if name not in CHOICES or name == "custom":
        name = default
    if name in LENGTHS:
        return Period(name, _quarter(now - LENGTHS[name]), now, zone)
    kind = Window.DAY if name == "today" else Window.MONTH
    whole = span(kind, now, zone)
    start, end = whole.start or now, now
    if name == "last_month":
        before = span(kind, start - dt.timedelta(seconds=1), zone)
        start, end = before.start or start, start
    return Period(name, start, end, zone)


def zone_of(query: Mapping[str, str]) -> ZoneInfo:
    name = query.get("zone", "")
    known = name in available_timezones()
    return ZoneInfo(name if known else conf.current().zone_name)


def _custom(query: Mapping[str, str], zone: ZoneInfo) -> Period | None:
    """Whole days of the zone, both named ones included."""
    try:
        first, last = (dt.date.fromisoformat(query.get(name, "")) for name in ("from", "to"))
        noon = dt.time(12)
        start = span(Window.DAY, dt.datetime.combine(first, noon, zone), zone).start
        end = span(Window.DAY, dt.datetime.combine(last, noon, zone), zone).end
    except (ValueError, OverflowError):
        return None
    if start is None or end is None or not start < end or end - start > LONGEST:
        return None
    return Period("custom", start, end, zone)


def _quarter(moment: dt.datetime) -> dt.datetime:
    """The roll-ups know whole quarters of an hour."""
    seconds = int(moment.timestamp()) // int(QUARTER.total_seconds()) * int(QUARTER.total_seconds())
    return dt.datetime.fromtimestamp(seconds, dt.UTC)
