"""Overview: are we all right, and where is the money going?"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django.db.models import Sum
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone
from django.views.decorators.http import require_safe

from token_allowance import admission, conf, policy
from token_allowance.exceptions import StoreUnavailable
from token_allowance.limits import Unit
from token_allowance.management import fullest
from token_allowance.models import Alert, LimitRevision, Refusal, SwitchEvent
from token_allowance.money import format_usd
from token_allowance.stores.base import Room
from token_allowance.windows import Window, span
from token_allowance_dashboard import charts, firsts, page, periods, spending
from token_allowance_dashboard.access import access, screen
from token_allowance_dashboard.forecast import Forecast, forecast
from token_allowance_dashboard.periods import Period
from token_allowance_dashboard.spending import Figures, Scope

DAYS = 30  # of bars
SERIES = 6
CLOSEST = 10
FEW = 5
DAY = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Close:
    """A budget near its end."""

    whose: str
    window: str
    unit: str
    amount: int
    used: int
    reserved: int
    available: int
    percent: int
    resets_at: dt.datetime | None
    state: str
    tenant: str


@require_safe
@screen()
def overview(request: HttpRequest) -> HttpResponseBase:
    now, scope = timezone.now(), Scope({}, access(request).tenants)
    checklist = firsts.checklist(now) if access(request).everything else []
    month = periods.of({"zone": request.GET.get("zone", "")}, now, "month")
    at = spending.edge(now)
    limit = _global_limit() if scope.tenants is None else None
    days = _daily(month.zone, now, scope, at)
    spent = spending.total(month, scope, at)
    end = span(Window.MONTH, now, month.zone).end or now
    ahead = forecast(spent.cost_micros, [s for _, s in days.complete], now, end, limit)
    in_flight, reserved = spending.in_flight(scope)
    context = {
        "verdict": _verdict(spent, ahead, limit, days, month),
        "spent": spent,
        "month": month,
        "reserved_micros": reserved,
        "in_flight": in_flight,
        "forecast": ahead,
        "limit": limit,
        "refused": _refused(scope, now, month),
        "burn": _burn(month, days, spent.cost_micros, ahead, limit),
        "bars": days.chart,
        "close": _closest(request, now),
        "alerts": _alerts(scope),
        "changes": _changes(scope),
        "checklist": checklist,
        "undone": sum(not one.done for one in checklist),
    }
    return page.show(request, "overview.html", context, title="Overview", tab="overview",
                     question="Are we all right, and where is the money going?")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Days:
    """Spending of each day, of all and by feature."""

    complete: tuple[tuple[dt.date, int], ...]
    today: int
    chart: charts.Chart
    top: str  # the feature that has spent most in a day
    top_percent: int


def _daily(zone: Any, now: dt.datetime, scope: Scope, at: spending.Edge) -> Days:
    period = Period("30d", span(Window.DAY, now - DAYS * DAY, zone).start or now, now, zone)
    parts = period.days()
    found = spending.buckets([(start, end) for _, start, end in parts], scope, ["feature"], at)
    totals = [sum(f.cost_micros for f in bucket.values()) for bucket in found]
    sums: dict[str, int] = {}
    for bucket in found:
        for (name,), figures in bucket.items():
            sums[name] = sums.get(name, 0) + figures.cost_micros
    names = sorted(sums, key=lambda name: -sums[name])
    shown = [(n or "none", [_of(b, n) for b in found]) for n in names[:SERIES]]
    if names[SERIES:]:
        shown.append(("other", [sum(_of(b, n) for n in names[SERIES:]) for b in found]))
    labels = [f"{day:%-d %b}" for day, _, _ in parts]
    chart = charts.stacked("days", "Spent each day by feature", labels, shown, last_is_open=True)
    last = spending.grouped(now - DAY, now, scope, ["feature"], at)
    whole = sum(row.figures.cost_micros for row in last)
    first = next((n for n, total in enumerate(totals) if total), len(totals))
    complete = tuple((day, total) for (day, _, _), total in zip(parts, totals, strict=True))
    return Days(
        complete[first:-1],
        totals[-1] if totals else 0,
        chart,
        last[0].keys[0] if last else "",
        100 * last[0].figures.cost_micros // whole if whole else 0,
    )


def _of(bucket: dict[tuple[str, ...], Figures], name: str) -> int:
    return bucket[(name,)].cost_micros if (name,) in bucket else 0


def _global_limit() -> int | None:
    """The dollars that all calls together may cost in a month, if there is such a limit."""
    try:
        limits = policy.confirmed().generic
    except StoreUnavailable:
        return None
    found = [
        limit.amount
        for limit in limits
        if not limit.shape and limit.unit is Unit.COST and limit.window is Window.MONTH
    ]
    return min(found, default=None)


def _verdict(
    spent: Figures, ahead: Forecast | None, limit: int | None, days: Days, month: Period
) -> str:
    """The first thing to read: whether it will last, and what the money goes to."""
    of = f" of {format_usd(limit)}" if limit is not None else ""
    said = [f"{format_usd(spent.cost_micros)}{of} spent this month."]
    if limit is not None and spent.cost_micros >= limit:
        said = [f"The month's limit of {format_usd(limit)} is spent."]
    elif ahead is not None:
        said = [f"On course for {format_usd(_cents(ahead.micros))}{of} this month"]
        if ahead.reaches_at is not None:
            said[0] += f": reaches the limit {ahead.reaches_at.astimezone(month.zone):%-d %b %H:%M}"
        said[0] += "."
    if days.top_percent:
        said.append(f"{days.top or 'What names no feature'} is {days.top_percent} % of 24 hours.")
    return " ".join(said)


def _cents(micros: int) -> int:
    return micros // 10_000 * 10_000


def _refused(scope: Scope, now: dt.datetime, month: Period) -> int:
    today = span(Window.DAY, now, month.zone).start or now
    rows = Refusal.objects.filter(scope.where(), starts_at__gte=today)
    return int(rows.aggregate(calls=Sum("calls"))["calls"] or 0)


def _burn(
    month: Period, days: Days, spent: int, ahead: Forecast | None, limit: int | None
) -> charts.Chart:
    """What the month has cost, day by day, and how it would go on."""
    first = month.start.astimezone(month.zone).date()
    own = [total for day, total in days.complete if day >= first]
    running, total = [], 0
    for one in own:
        total += one
        running.append(total)
    running.append(spent)
    start = next((day for day, _ in days.complete if day >= first), first)
    to_come = ahead.by_day if ahead else ()
    labels = [f"{start + n * DAY:%-d %b}" for n in range(len(running) + len(to_come))]
    levels = []
    if limit is not None:
        levels = [(limit * 70 // 100, "70 %"), (limit * 90 // 100, "90 %"), (limit, "limit")]
    return charts.curve(
        "burn", "Spent this month", labels, running, forecast=to_come, levels=levels
    )


def _closest(request: HttpRequest, now: dt.datetime) -> list[Close] | None:
    """The budgets nearest to their end; None while the store cannot be asked."""
    try:
        rooms = fullest.rooms(now)
    except StoreUnavailable:
        return None
    seen = access(request)
    shown = [_close(room) for room in rooms]
    return [one for one in shown if seen.sees(one.tenant)][:CLOSEST]


def _close(room: Room) -> Close:
    limit, percent = room.budget.limit, fullest.percent(room)
    return Close(
        whose=", ".join(f"{name} {value}" for name, value in room.budget.values) or "everyone",
        window=limit.adjective,
        unit=limit.unit.value,
        amount=limit.amount,
        used=room.used,
        reserved=room.reserved,
        available=room.available,
        percent=percent,
        resets_at=room.resets_at(),
        state=admission.state_of(room, conf.current().MODE == "observe"),
        tenant=dict(room.budget.values).get("tenant", ""),
    )


def _alerts(scope: Scope) -> list[Alert]:
    rows = Alert.objects.filter(resolved_at=None).order_by("-fired_at")
    if scope.tenants is not None:
        rows = rows.filter(tenant__in=scope.tenants)
    return list(rows[:FEW])


def _changes(scope: Scope) -> list[tuple[dt.datetime, str, str]]:
    """What was changed last: when, what, by whom."""
    flips = SwitchEvent.objects.select_related("switch").order_by("-at")
    if scope.tenants is not None:
        flips = flips.filter(switch__tenant__in=scope.tenants)
    found = [(f.at, f"{f.switch} {f.action}", f.by) for f in flips[:FEW]]
    if scope.tenants is None:
        revisions = LimitRevision.objects.order_by("-at")[:FEW]
        found += [(r.at, f"limit {r.scope} {_done(r)}", r.by) for r in revisions]
    return sorted(found, reverse=True)[:FEW]


def _done(revision: LimitRevision) -> str:
    return "changed" if revision.before or revision.after else "was not to be changed"
