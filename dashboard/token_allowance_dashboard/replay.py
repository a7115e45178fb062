"""What a limit would have done in the last 30 days: its windows run again over the roll-ups.

An estimate. The roll-ups hold quarters of an hour: the calls of one are taken as alike and evenly
spread. In each window, what goes beyond the amount counts as refused, and is not counted as used.
"""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from django.db.models import Q, QuerySet, Sum

from token_allowance import conf, rolling
from token_allowance.limits import EACH, Limit, zone
from token_allowance.models import HourlySpend, Tenant
from token_allowance.windows import Window, span
from token_allowance_dashboard.holders import ZONES, measure
from token_allowance_dashboard.rulebook import Rulebook, Values

DAYS = 30
QUARTER = dt.timedelta(minutes=HourlySpend.MINUTES)
QUARTER_SECONDS = int(QUARTER.total_seconds())
MOST_NAMED = 500  # values that a query names one by one

Moment = dt.datetime


@dataclass(slots=True)
class Refused:
    """Of one tenant. Money in micro-dollars."""

    tenant: str
    calls: int = 0
    micros: int = 0
    days: set[dt.date] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Replay:
    """``known`` is False where the roll-ups cannot tell: of sessions."""

    days: frozenset[dt.date] = frozenset()
    by_tenant: tuple[Refused, ...] = ()
    known: bool = True

    @property
    def calls(self) -> int:
        return sum(one.calls for one in self.by_tenant)

    @property
    def micros(self) -> int:
        return sum(one.micros for one in self.by_tenant)

    @property
    def tenants(self) -> int:
        return sum(1 for one in self.by_tenant if one.tenant)


@dataclass(frozen=True, slots=True)
class Cut:
    """Of one quarter of an hour of one budget: so much of all that was used is refused."""

    over: int
    used: int
    day: dt.date


Cuts = dict[tuple[Values, Moment], Cut]
Quarters = list[tuple[Moment, int]]


def run(limit: Limit, book: Rulebook, now: Moment) -> Replay:
    """``limit`` is in the book: budgets of narrower limits are not its own."""
    if limit.session:
        return Replay(known=False)
    since = now - DAYS * dt.timedelta(days=1)
    rows = _rows(limit, _from(limit, since))
    found: Cuts = {}
    budgets = _budgets(limit, book, rows)
    book.know(dict(values).get("tenant", "") for values in budgets)
    for values, quarters in budgets.items():
        own = [b for b in book.matching(values) if b.enforced and b.limit.id == limit.id]
        if not own:
            continue
        rule = replace(own[0].limit, amount=limit.amount)  # without what was granted for a while
        found.update(((values, at), cut) for at, cut in _walked(rule, quarters) if at >= since)
    refused = _refused(limit, book, rows, {key: cut for key, cut in found.items() if cut.over})
    return Replay(frozenset(cut.day for cut in found.values()), tuple(refused))


def _from(limit: Limit, since: Moment) -> Moment | None:
    """The window in which the 30 days begin has begun before."""
    if limit.window is Window.TOTAL:
        return None
    if limit.window is Window.ROLLING:
        return since - dt.timedelta(seconds=limit.rolling_seconds)
    named = zone(limit.time_zone or conf.current().zone_name)
    start = span(limit.window, since, named, limit.anchor_day).start
    return start and start - ZONES


def _rows(limit: Limit, start: Moment | None) -> QuerySet[Any, Any]:
    where = Q() if start is None else Q(starts_at__gte=start)
    for name in limit.shape:
        rule = getattr(limit, name)
        if rule == EACH:
            where &= ~Q(**{name: ""})
        elif name != "model":  # it has several names
            where &= Q(**{name: rule})
    if limit.plan:
        where &= Q(tenant__in=Tenant.objects.filter(plan=limit.plan).values("key"))
    return HourlySpend.objects.filter(where).order_by()


def _budgets(limit: Limit, book: Rulebook, rows: QuerySet[Any, Any]) -> dict[Values, Quarters]:
    """What each budget used, quarter by quarter, of those that used the amount in all this time:
    no window of the others reached it."""
    if limit.shape and "model" not in limit.shape:
        much = rows.values(*limit.shape).annotate(all=measure(limit.unit))
        much = much.filter(all__gte=limit.stop_amount).values_list(*limit.shape)
        enough = list(much[: MOST_NAMED + 1])
        if len(enough) <= MOST_NAMED:
            for name, found in zip(limit.shape, zip(*enough, strict=True), strict=False):
                rows = rows.filter(**{f"{name}__in": set(found)})
            rows = rows if enough else rows.none()
    counted = rows.values("starts_at", *limit.shape).annotate(used=measure(limit.unit))
    budgets: dict[Values, Quarters] = {}
    for starts_at, *names, used in counted.order_by("starts_at").values_list(
        "starts_at", *limit.shape, "used"
    ):
        values = book.canonical(tuple(zip(limit.shape, names, strict=True)))
        quarters = budgets.setdefault(values, [])
        if quarters and quarters[-1][0] == starts_at:  # two names of one model
            used += quarters.pop()[1]
        quarters.append((starts_at, used))
    return {
        values: quarters
        for values, quarters in budgets.items()
        if sum(used for _, used in quarters) >= limit.stop_amount
    }


def _walked(limit: Limit, quarters: Quarters) -> Iterator[tuple[Moment, Cut]]:
    """The quarters in which the amount is reached, with what is refused of them."""
    named, most = zone(limit.time_zone), limit.stop_amount
    admitted = deque[tuple[Moment, int]]()
    length, end, spent = _length(limit), None, 0
    if limit.window is Window.MINUTE:
        most *= QUARTER_SECONDS // 60
    elif limit.window is Window.ROLLING:
        most *= max(1, QUARTER_SECONDS // limit.rolling_seconds)
    for at, used in quarters:
        if length is not None:
            while admitted and admitted[0][0] + length <= at:
                spent -= admitted.popleft()[1]
        elif limit.window is not Window.TOTAL and (end is None or at >= end):
            end, spent = span(limit.window, at, named, limit.anchor_day).end, 0
        over = max(0, spent + used - most)
        spent += used - over
        if length is not None:
            admitted.append((at, used - over))
        if spent >= most:
            yield at, Cut(over, used, at.astimezone(named).date())


def _length(limit: Limit) -> dt.timedelta | None:
    """How long a call counts, where no window begins anew for all of them."""
    if limit.window is Window.MINUTE:
        return QUARTER
    if limit.window is not Window.ROLLING:
        return None
    micros = rolling.slice_micros(limit.rolling_seconds) * (rolling.BEHIND + 1)
    return dt.timedelta(microseconds=micros)


def _refused(limit: Limit, book: Rulebook, rows: QuerySet[Any, Any], cuts: Cuts) -> list[Refused]:
    """Whose calls these are, the dearest first: of each quarter so much as is cut, rounded up."""
    if not cuts:
        return []
    names = tuple(dict.fromkeys([*limit.shape, "tenant"]))
    sums = rows.filter(starts_at__in={at for _, at in cuts}).values("starts_at", *names)
    by_tenant: dict[str, Refused] = {}
    for row in sums.annotate(n=Sum("calls"), micros=Sum("cost_micros")).iterator():
        values = book.canonical(tuple((name, row[name]) for name in limit.shape))
        cut = cuts.get((values, row["starts_at"]))
        if cut is None:
            continue
        one = by_tenant.setdefault(row["tenant"], Refused(row["tenant"]))
        one.calls += -(-row["n"] * cut.over // cut.used)
        one.micros += row["micros"] * cut.over // cut.used
        one.days.add(cut.day)
    return sorted(by_tenant.values(), key=lambda one: (-one.micros, -one.calls, one.tenant))
