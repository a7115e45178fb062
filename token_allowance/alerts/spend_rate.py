"""Spending far above what is usual at this time of the week: of everything, a tenant or a feature.

``threshold``: how many times the usual is too much. ``minutes``: in how many, 15 at least, because
the past is known by the quarter of an hour.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal

from token_allowance import conf
from token_allowance.alerts import quarters, telling
from token_allowance.alerts.finding import Finding
from token_allowance.alerts.history import Found, History
from token_allowance.alerts.sums import NONE, Sums, Target
from token_allowance.alerts.surges import Detector, Surge
from token_allowance.limits import zone
from token_allowance.models import AlertRule

FACTOR = Decimal(4)
LEAST_MINUTES = 15
QUARTER = Decimal(1)  # how many of them a quarter of an hour is
LOOKED_BACK = 7 * quarters.DAY


def find(rule: AlertRule, now: dt.datetime) -> Iterator[Finding]:
    minutes = max(LEAST_MINUTES, rule.minutes or 0)
    since = now - dt.timedelta(minutes=minutes)
    history, begun = History(telling.alias_of(rule)), telling.begun(rule)
    opened = {Target.parsed(text): at for text, at in begun.items()}
    past = Before(history, since, now, opened)
    detector = Detector(
        factor=factor(rule),
        quarters=Decimal(minutes) / LEAST_MINUTES,
        past=past,
    )
    cells = history.recent(since, now)
    past.load([*detector.candidates(cells), *opened])
    for surge in detector.find(cells, opened):
        yield _finding(surge, since, minutes)


def factor(rule: AlertRule) -> Decimal:
    return FACTOR if rule.threshold is None else rule.threshold


class Before:
    """What was spent before this stretch, read for all that may have to be told at once."""

    def __init__(
        self,
        history: History,
        since: dt.datetime,
        until: dt.datetime,
        begun: Mapping[Target, dt.datetime],
    ) -> None:
        self.history, self.begun = history, begun
        self.last = quarters.number(since)
        around = quarters.same_time(since, until, zone(conf.current().zone_name))
        self._around = around
        self._weeks: list[range] = []
        self._features: Found = {}
        self._cells: Found = {}

    def load(self, targets: Collection[Target]) -> None:
        """Two queries: one for features, which are few, one for the tenants that are named."""
        if not targets:
            return
        self._weeks = quarters.complete(self._around, self.history.oldest)
        if not self._weeks:
            return
        self._features = self.history.quarters(self._weeks, ("feature",))
        if tenants := {target.tenant for target in targets} - {""}:
            names = ("tenant", "feature")
            self._cells = self.history.quarters(self._weeks, names, tenant__in=sorted(tenants))

    def weeks(self, target: Target) -> Sequence[Sequence[Sums]]:
        found = self._cells if target.tenant else self._features
        wanted = [
            by_quarter
            for names, by_quarter in found.items()
            if target.feature in ("", names[-1]) and target.tenant in ("", names[0])
        ]
        return [[_sum(wanted, quarter) for quarter in week] for week in self._weeks]

    def highest_micros(self, target: Target) -> int | None:
        """Without what was spent since it began, which would soon pass for the usual."""
        oldest, end = self.history.oldest, self.last
        if target in self.begun:
            end = min(end, quarters.number(self.begun[target]) - 1)
        if oldest is None or quarters.number(oldest) > end - quarters.DAY:
            return None
        only = {
            name: value
            for name, value in (("tenant", target.tenant), ("feature", target.feature))
            if value
        }
        return self.history.highest_micros(range(end - LOOKED_BACK, end), only)


def _sum(wanted: Sequence[Mapping[int, Sums]], quarter: int) -> Sums:
    found = NONE
    for by_quarter in wanted:
        found += by_quarter.get(quarter, NONE)
    return found


def _finding(surge: Surge, since: dt.datetime, minutes: int) -> Finding:
    target, name = surge.target, telling.short(surge.target.name)
    rate = telling.usd(surge.micros // minutes)
    usual = telling.usd(surge.usual_micros // minutes)
    what = "at this time of the week" if surge.by_week else "at most in the last 7 days"
    times = ""
    if surge.times:
        times = f", {surge.times:.0f}x " + ("usual" if surge.by_week else "the most in 7 days")
    return Finding(
        target=str(target),
        title=f"{name} is spending {rate} a minute{times}",
        tenant=target.tenant,
        feature=target.feature,
        value=surge.micros,
        threshold=surge.threshold_micros,
        unit="cost",
        since=since,
        details=telling.details(
            minutes=minutes,
            usual_micros=surge.usual_micros,
            times=f"{surge.times:.1f}" if surge.times else None,
            sentence=f"{name} spent {telling.usd(surge.micros)} in {minutes} minutes, {rate} a "
            f"minute; {what} it is {usual}.",
        ),
    )
