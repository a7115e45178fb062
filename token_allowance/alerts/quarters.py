"""Quarters of an hour by number since 1970, as the roll-ups have them, and the same time before.

The same time is what clocks in a zone show: traffic follows people, and people follow clocks.
"""

from __future__ import annotations

import datetime as dt

SECONDS = 15 * 60
DAY = 96
WEEK = 7 * DAY
WEEKS = 4  # how far back the shape of a week is looked for
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MICROSECOND = dt.timedelta(microseconds=1)


def number(moment: dt.datetime) -> int:
    """The quarter that a moment lies in."""
    return (moment - EPOCH) // dt.timedelta(seconds=SECONDS)


def start(quarter: int) -> dt.datetime:
    return EPOCH + dt.timedelta(seconds=quarter * SECONDS)


def same_time(
    since: dt.datetime, until: dt.datetime, zone: dt.tzinfo, weeks: int = WEEKS
) -> list[range]:
    """The quarters around the same time of the week, one to so many weeks before, latest first.

    Those that the stretch touches, and one more at either side: what starts by the clock seldom
    starts by the second.
    """
    found = []
    for week in range(1, weeks + 1):
        first = (since.astimezone(zone) - dt.timedelta(weeks=week)).astimezone(dt.UTC)
        last = first + (until - since) - MICROSECOND
        found.append(range(number(first) - 1, number(last) + 2))
    return found


def complete(quarters: list[range], oldest: dt.datetime | None) -> list[range]:
    """Those that lie in a time of which anything is known."""
    if oldest is None:
        return []
    first = number(oldest) + 1  # the oldest quarter may be half of one
    return [one for one in quarters if one.start >= first]
