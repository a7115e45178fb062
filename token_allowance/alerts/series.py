"""The past of several targets in memory, as of any moment in it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from token_allowance.alerts import quarters
from token_allowance.alerts.sums import NONE, Sums, Target


@dataclass(frozen=True, slots=True)
class Series:
    """The sums of each target by quarter of an hour; of what was before ``first`` nothing is known.

    ``zone`` is that of the clocks which people follow.
    """

    sums: Mapping[Target, Mapping[int, Sums]]
    first: int
    zone: dt.tzinfo

    def before(self, since: dt.datetime, until: dt.datetime) -> Past:
        """What was known when this stretch ended, without the stretch."""
        around = quarters.same_time(since, until, self.zone)
        known = [week for week in around if week.start >= self.first]
        return Past(self, quarters.number(since), known)


@dataclass(frozen=True, slots=True)
class Past:
    series: Series
    last: int  # the quarter in which the stretch begins
    around: Sequence[range]

    def weeks(self, target: Target) -> Sequence[Sequence[Sums]]:
        return [self._of(target, week) for week in self.around]

    def highest_micros(self, target: Target) -> int | None:
        if self.last - self.series.first < quarters.DAY:
            return None
        seen = self._of(target, range(self.last - quarters.WEEK, self.last))
        return max((sums.micros for sums in seen), default=None)

    def lately(self, target: Target) -> list[Sums]:
        """The quarters of the day before, and of this time of the last weeks."""
        day = self._of(target, range(self.last - quarters.DAY, self.last))
        return [*day, *(sums for week in self.weeks(target) for sums in week)]

    def _of(self, target: Target, wanted: range) -> list[Sums]:
        found = self.series.sums.get(target, {})
        known = range(max(wanted.start, self.series.first), wanted.stop)
        return [found.get(quarter, NONE) for quarter in known]
