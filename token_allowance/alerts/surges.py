"""Spending far above what is usual at this time of the week: the arithmetic, without a database.

What is usual in a quarter of an hour is the second highest of the last four weeks, of each the
highest quarter around that time: neither one incident nor a job that begins a little later is
mistaken for the usual, or for an incident.

Where few calls are usual at this time, as at night, or of a new customer, it is the highest quarter
of the last seven days. So it is while two weeks are not over, and then it takes twice as much; in
the first day nothing is said. Of what was never seen before nothing is said either: that is news,
and no departure from the usual.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Protocol

from token_allowance.alerts.sums import NONE, Cell, Cells, Sums, Target, summed

FLOOR_MICROS = 1_000_000  # in the whole stretch; less is never worth a message
LEAST_CALLS = 20  # of a usual quarter, for its week to be believed
LEAST_WEEKS = 2
NARROW = Decimal("0.8")  # share of the excess that makes a narrower target the better answer
YOUNG = 2  # times the factor, while the shape of a week is not known
STAY = 2  # what has begun is over below its threshold divided by this
CHANCE = 2  # standard deviations of a sum of calls
MOST = 20  # findings at a time


class Past(Protocol):
    """What was spent before, by quarter of an hour."""

    def weeks(self, target: Target) -> Sequence[Sequence[Sums]]:
        """The quarters around this time of the week, in each week of which anything is known."""

    def highest_micros(self, target: Target) -> int | None:
        """The most it spent in a quarter of the last seven days; None in the first day."""


@dataclass(frozen=True, slots=True)
class Surge:
    """Micro-dollars of the whole stretch: spent, usual, and from which on it was told."""

    target: Target
    micros: int
    usual_micros: int
    threshold_micros: int
    by_week: bool = True  # is the usual that of this time of the week, or of the last 7 days?

    def holds(self, cell: Cell) -> bool:
        return self.target.holds(cell)

    @property
    def excess_micros(self) -> int:
        return self.micros - self.usual_micros

    @property
    def times(self) -> Decimal | None:
        return Decimal(self.micros) / self.usual_micros if self.usual_micros else None


@dataclass(frozen=True, slots=True)
class Detector:
    """``factor`` times the usual is too much, in a stretch of so many quarters."""

    factor: Decimal
    quarters: Decimal
    past: Past

    def find(self, cells: Cells, begun: Collection[Target] = ()) -> list[Surge]:
        """The surges, each explained once: by the narrowest target that has most of the excess.

        ``begun`` are those that were told and go on until they are well below their threshold.
        """
        found = []
        for target in sorted(begun):
            surge = self._going_on(target, target.of(cells))
            if surge is not None:
                found.append(surge)
                cells = _without(cells, surge)
        while len(found) < MOST and (new := self._new(cells)):
            surge = self._closer(_largest(new), cells)
            found.append(surge)
            cells = _without(cells, surge)
        return found

    def candidates(self, cells: Cells) -> dict[Target, Sums]:
        """What has spent enough for its past to be worth a look."""
        sums = summed(cells) | {Target(*cell): part for cell, part in cells.items() if all(cell)}
        return {target: part for target, part in sums.items() if part.micros >= FLOOR_MICROS}

    def _new(self, cells: Cells) -> list[Surge]:
        judged = (self._surge(*one) for one in self.candidates(cells).items())
        return [surge for surge in judged if surge is not None]

    def _surge(self, target: Target, now: Sums) -> Surge | None:
        usual = self._usual(target)
        if not usual.micros:
            return None
        threshold = max(FLOOR_MICROS, int(self.factor * usual.times * usual.micros))
        surge = Surge(target, now.micros, usual.micros, threshold, usual.by_week)
        return surge if _surely(now) >= threshold else None

    def _closer(self, surge: Surge, cells: Cells) -> Surge:
        """The one feature of one tenant that has most of the excess, if there is one."""
        held = {cell: part for cell, part in cells.items() if all(cell) and surge.holds(cell)}
        if not held:
            return surge
        cell = max(held, key=lambda one: held[one].micros)
        close = self._going_on(Target(*cell), held[cell])
        most = NARROW * surge.excess_micros
        return close if close is not None and close.excess_micros >= most else surge

    def _going_on(self, target: Target, now: Sums) -> Surge | None:
        usual = self._usual(target)
        threshold = max(FLOOR_MICROS, int(self.factor * usual.micros)) // STAY
        surge = Surge(target, now.micros, usual.micros, threshold, usual.by_week)
        return surge if now.micros >= threshold else None

    def _usual(self, target: Target) -> Usual:
        weeks = self.past.weeks(target)
        highest = partial(self.past.highest_micros, target)
        if len(weeks) < LEAST_WEEKS:
            usual = Usual(highest() or 0, times=YOUNG)
        elif second_highest(max(q.calls for q in week) for week in weeks) < LEAST_CALLS:
            usual = Usual(highest() or 0)
        else:
            usual = Usual(second_highest(max(q.micros for q in week) for week in weeks), True)
        return replace(usual, micros=int(usual.micros * self.quarters))


@dataclass(frozen=True, slots=True)
class Usual:
    """What is usually spent in the stretch, 0 if that is not known. ``times``: a factor more."""

    micros: int
    by_week: bool = False
    times: int = 1


def _surely(now: Sums) -> int:
    """What such calls spend at least, when chance is taken off: a few dear ones are no rate.

    The squares of the calls add up to the variance of their sum, if each comes by itself.
    """
    return now.micros - int(CHANCE * math.sqrt(now.squared_micros))


def second_highest(figures: Iterable[int]) -> int:
    """Of three or more; the highest of fewer, 0 of none."""
    found = sorted(figures, reverse=True)
    return found[1 if len(found) > 2 else 0] if found else 0


def _largest(surges: list[Surge]) -> Surge:
    """That of most excess; everything comes last."""
    named = [surge for surge in surges if not surge.target.is_global]
    return max(named or surges, key=lambda surge: surge.excess_micros)


def _without(cells: Cells, surge: Surge) -> dict[Cell, Sums]:
    """The cells as if the target of the surge had spent what is usual."""
    share = Decimal(surge.usual_micros) / surge.micros if surge.micros else Decimal(0)
    share = min(share, Decimal(1))
    return {
        cell: _scaled(sums, share) if surge.target.holds(cell) else sums
        for cell, sums in cells.items()
    }


def _scaled(sums: Sums, share: Decimal) -> Sums:
    if sums == NONE:
        return sums
    return replace(
        sums,
        micros=int(sums.micros * share),
        squared_micros=sums.squared_micros * float(share) ** 2,
    )
