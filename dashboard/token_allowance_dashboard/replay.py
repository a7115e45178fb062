"""What a limit would have done in the last 30 days: its windows run again over the roll-ups.

An estimate. The roll-ups hold quarters of an hour: the calls of one, or of a day, are taken as
alike and evenly spread. In each window, what goes beyond the amount counts as refused, and is not
counted as used.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from django.db.models import Case, DateTimeField, F, Q, QuerySet, Sum, Value, When

from token_allowance import conf, rolling
from token_allowance.limits import EACH, Limit, zone
from token_allowance.models import HourlySpend, Tenant
from token_allowance.windows import Window, span
from token_allowance_dashboard.holders import ZONES, measure
from token_allowance_dashboard.rulebook import Rulebook, Values

DAYS = 30
QUARTER = dt.timedelta(minutes=HourlySpend.MINUTES)
QUARTER_SECONDS = int(QUARTER.total_seconds())
MOST_NAMED = 5_000  # budgets of tenants that are looked at: those that used the most
BY_DAY = (Window.DAY, Window.WEEK, Window.MONTH)

Moment = dt.datetime


@dataclass(slots=True)
class Refused:
    """Of one tenant. Money in micro-dollars."""

    tenant: str
    calls: int = 0
    micros: int = 0


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


class Step(NamedTuple):
    """What one budget used in a stretch of time, in the limit's unit."""

    at: Moment
    used: int
    calls: int
    micros: int


@dataclass(frozen=True, slots=True)
class Cut:
    """So much of what was used in a step is refused."""

    over: int
    step: Step
    day: dt.date


Cuts = dict[tuple[Values, Moment], Cut]


def run(limit: Limit, book: Rulebook, now: Moment) -> Replay:
    """``limit`` is in the book: budgets of narrower limits are not its own."""
    if limit.session:
        return Replay(known=False)
    since = now - DAYS * dt.timedelta(days=1)
    rows = _rows(limit, _from(limit, since))
    found: Cuts = {}
    for rule, budgets in _budgets(limit, book, rows, since, now):
        for values, steps in budgets.items():
            cuts = _walked(rule, steps)
            found.update(((values, at), cut) for at, cut in cuts if at >= since)
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


def _budgets(
    limit: Limit, book: Rulebook, rows: QuerySet[Any, Any], since: Moment, now: Moment
) -> Iterator[tuple[Limit, dict[Values, list[Step]]]]:
    """What each budget used, step by step, together with the rule in its zone.

    Of tenants, who are many, a step is a day where the window is one or longer: whose calls are
    refused is known without looking closer. Else it is a quarter of an hour.
    """
    if "tenant" not in limit.shape:
        zoned = replace(limit, time_zone=limit.time_zone or conf.current().zone_name)
        yield zoned, _steps(limit, book, rows, F("starts_at"))
        return
    much = rows.values(*limit.shape).annotate(all=measure(limit.unit))
    enough = much.filter(all__gte=limit.stop_amount).order_by("-all")
    by_zone = defaultdict[str, set[str]](set)
    named = [dict(zip(limit.shape, one, strict=True)) for one in enough.values_list(*limit.shape)]
    book.know(one["tenant"] for one in named[:MOST_NAMED])
    for one in named[:MOST_NAMED]:
        own = book.matching(book.canonical(tuple(one.items())))
        for budget in own:
            if budget.enforced and budget.limit.id == limit.id:
                by_zone[budget.limit.time_zone].add(one["tenant"])
    for name, tenants in by_zone.items():
        own_rows, moment = rows.filter(tenant__in=tenants), F("starts_at")
        if limit.window in BY_DAY:
            moment = _day(_from(limit, since) or since, now, zone(name))
        yield replace(limit, time_zone=name), _steps(limit, book, own_rows, moment)


def _day(start: Moment, end: Moment, named: dt.tzinfo) -> Any:
    """The moment at which the day of a row has begun, in that zone: any zone, in SQL."""
    days = []
    while start < end:
        day = span(Window.DAY, start, named)
        start = day.end or end
        days.append(When(starts_at__lt=start, then=Value(day.start)))
    return Case(*days, output_field=DateTimeField())


def _steps(
    limit: Limit, book: Rulebook, rows: QuerySet[Any, Any], moment: Any
) -> dict[Values, list[Step]]:
    """By the budgets that used the amount in all this time: no window of others reached it."""
    counted = rows.annotate(step=moment).values("step", *limit.shape).annotate(
        used=measure(limit.unit), n=Sum("calls"), micros=Sum("cost_micros")
    )  # fmt: skip
    found: dict[Values, list[Step]] = {}
    for at, *names, used, calls, micros in counted.order_by("step").values_list(
        "step", *limit.shape, "used", "n", "micros"
    ):
        values = book.canonical(tuple(zip(limit.shape, names, strict=True)))
        steps = found.setdefault(values, [])
        if steps and steps[-1].at == at:  # two names of one model
            last = steps.pop()
            used, calls, micros = used + last.used, calls + last.calls, micros + last.micros
        steps.append(Step(at, used, calls, micros))
    own: dict[Values, list[Step]] = {}
    for values, steps in found.items():
        if sum(step.used for step in steps) >= limit.stop_amount and any(
            budget.enforced and budget.limit.id == limit.id for budget in book.matching(values)
        ):
            own[values] = steps
    return own


def _walked(limit: Limit, steps: list[Step]) -> Iterator[tuple[Moment, Cut]]:
    """The steps in which the amount is reached, with what is refused of them."""
    named, most = zone(limit.time_zone), limit.stop_amount
    admitted = deque[tuple[Moment, int]]()
    length, end, spent = _length(limit), None, 0
    if limit.window is Window.MINUTE:
        most *= QUARTER_SECONDS // 60
    elif limit.window is Window.ROLLING:
        most *= max(1, QUARTER_SECONDS // limit.rolling_seconds)
    for step in steps:
        at, used = step.at, step.used
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
            yield at, Cut(over, step, at.astimezone(named).date())


def _length(limit: Limit) -> dt.timedelta | None:
    """How long a call counts, where no window begins anew for all of them."""
    if limit.window is Window.MINUTE:
        return QUARTER
    if limit.window is not Window.ROLLING:
        return None
    micros = rolling.slice_micros(limit.rolling_seconds) * (rolling.BEHIND + 1)
    return dt.timedelta(microseconds=micros)


def _refused(limit: Limit, book: Rulebook, rows: QuerySet[Any, Any], cuts: Cuts) -> list[Refused]:
    """Whose calls these are, the dearest first: of each step so much as is cut, rounded up."""
    found: dict[str, Refused] = {}

    def add(tenant: str, calls: int, micros: int, cut: Cut) -> None:
        one = found.setdefault(tenant, Refused(tenant))
        one.calls += -(-calls * cut.over // cut.step.used)
        one.micros += micros * cut.over // cut.step.used

    if "tenant" in limit.shape:
        for (values, _), cut in cuts.items():
            add(dict(values)["tenant"], cut.step.calls, cut.step.micros, cut)
    elif cuts:
        _add_by_tenant(limit, book, rows, cuts, add)
    return sorted(found.values(), key=lambda one: (-one.micros, -one.calls, one.tenant))


def _add_by_tenant(
    limit: Limit, book: Rulebook, rows: QuerySet[Any, Any], cuts: Cuts, add: Callable[..., None]
) -> None:
    """Steps that are cut whole are summed by the database, where one budget is meant."""
    sums = {"n": Sum("calls"), "micros": Sum("cost_micros")}
    whole = [key for key, cut in cuts.items() if cut.over == cut.step.used]
    if not limit.shape and whole:
        of_all = rows.filter(starts_at__in=[at for _, at in whole]).values("tenant")
        for row in of_all.annotate(**sums):
            add(row["tenant"], row["n"], row["micros"], cuts[whole[0]])
        cuts = {key: cut for key, cut in cuts.items() if cut.over != cut.step.used}
    each = rows.filter(starts_at__in={at for _, at in cuts})
    for row in each.values("starts_at", *limit.shape, "tenant").annotate(**sums).iterator():
        values = book.canonical(tuple((name, row[name]) for name in limit.shape))
        if cut := cuts.get((values, row["starts_at"])):
            add(row["tenant"], row["n"], row["micros"], cut)
