"""Tenants: which customers are near the edge, or cost too much?"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone
from django.views.decorators.http import require_safe

from token_allowance.models import Tenant
from token_allowance.money import to_dollars
from token_allowance_dashboard import charts, exports, page, periods, spending, tenancy
from token_allowance_dashboard.access import EXPORT, access, screen
from token_allowance_dashboard.rulebook import STATES, Standing
from token_allowance_dashboard.spending import Scope

PAGE = 50
MOST = 2_000  # tenants that are put in order: those that spent the most in 30 days
LATELY = dt.timedelta(days=30)
HOURS = 24


@dataclass(slots=True)
class Line:
    """One tenant. Money in micro-dollars."""

    key: str
    name: str = ""
    plan: str = ""
    is_active: bool = True
    month: int = 0
    lately: int = 0  # of 30 days
    one: Standing | None = None  # its tightest budget
    state: str = "unlimited"
    spark: str = ""
    day: int = 0  # of the last 24 hours

    @property
    def order(self) -> tuple[int, int, str]:
        return -(self.one.percent if self.one else -1), -self.month, self.key


@require_safe
@screen()
def tenants(request: HttpRequest) -> HttpResponseBase:
    now, who = timezone.now(), access(request)
    sought = request.GET.get("q", "").replace("\x00", "").strip()
    plan = request.GET.get("plan", "").replace("\x00", "")
    state = request.GET.get("state", "")
    found = _lines(_scope(who.tenants), sought, now, request)
    lines = [
        line
        for line in found
        if (not plan or line.plan == plan) and (state not in STATES or line.state == state)
    ]
    if request.GET.get("format") == "csv" and who.may(EXPORT):
        return _csv(lines)
    pages = Paginator(lines, PAGE).get_page(request.GET.get("page"))
    _add_sparks(list(pages.object_list), now)
    context = {
        "lines": pages.object_list,
        "pages": pages,
        "q": sought,
        "plan": plan,
        "state_chosen": state,
        "plans": sorted({line.plan for line in found} - {""}),
        "states": STATES,
        "cut": len(found) >= MOST,
        "most": MOST,
        "any": bool(found) or bool(sought),
        "zone": periods.zone_of(request.GET),
    }
    question = "Which customers are near the edge, or cost too much?"
    return page.show(request, "tenants.html", context, title="Tenants", question=question,
                     tab="tenants")  # fmt: skip


def _scope(tenants: frozenset[str] | None) -> Scope:
    return Scope({}, tenants)


def _lines(scope: Scope, sought: str, now: dt.datetime, request: HttpRequest) -> list[Line]:
    """Whoever has spent in 30 days or has a row, the nearest to a limit first."""
    rows = Tenant.objects.all() if scope.tenants is None else Tenant.objects.filter(
        key__in=scope.tenants
    )  # fmt: skip
    if sought:
        rows = rows.filter(Q(key__icontains=sought) | Q(name__icontains=sought))
    lines = {
        row.key: Line(row.key, row.name, row.plan, row.is_active)
        for row in rows.order_by("key")[:MOST]
    }
    month = periods.of({"range": "month", **_zone(request)}, now).start
    lately = now - LATELY
    first, second = min(month, lately), max(month, lately)
    parts = spending.buckets(
        [(first, second), (second, now)], scope, ["tenant"], spending.edge(now)
    )
    spent = {key: tuple(part[key].cost_micros if key in part else 0 for part in parts)
             for key in {**parts[0], **parts[1]}}  # fmt: skip
    for (key,), (before, after) in sorted(spent.items(), key=lambda one: -sum(one[1])):
        if key not in lines and (not key or (sought and sought.lower() not in key.lower())):
            continue
        if key in lines or (len(lines) < MOST and (after or lately == first)):
            line = lines.setdefault(key, Line(key))
            line.month = after + (before if month == first else 0)
            line.lately = after + (before if lately == first else 0)
    _know(lines)
    standings, stopping = tenancy.standings(lines, now), tenancy.stopping(now)
    for line in lines.values():
        line.one = next(iter(standings.get(line.key, ())), None)
        stopped = tenancy.is_stopped(line.key, line.is_active, stopping)
        line.state = tenancy.state(line.one, stopped)
    return sorted(lines.values(), key=lambda line: line.order)


def _know(lines: dict[str, Line]) -> None:
    """Rows of those that were found by their spending."""
    missing = [key for key, line in lines.items() if not line.name and not line.plan]
    for row in Tenant.objects.filter(key__in=missing):
        line = lines[row.key]
        line.name, line.plan, line.is_active = row.name, row.plan, row.is_active


def _zone(request: HttpRequest) -> dict[str, str]:
    return {"zone": request.GET["zone"]} if "zone" in request.GET else {}


def _add_sparks(lines: list[Line], now: dt.datetime) -> None:
    """Dollars of each hour of the last day, of the tenants that are shown."""
    start = now - dt.timedelta(hours=HOURS)
    parts = [
        (start + dt.timedelta(hours=n), start + dt.timedelta(hours=n + 1)) for n in range(HOURS)
    ]
    shown = Scope({}, frozenset(line.key for line in lines))
    found = spending.buckets(parts, shown, ["tenant"], spending.edge(now))
    for line in lines:
        values = [b[(line.key,)].cost_micros if (line.key,) in b else 0 for b in found]
        line.spark, line.day = charts.spark(values), sum(values)


def _csv(lines: list[Line]) -> HttpResponseBase:
    heads = ("tenant", "name", "plan", "state", "dollars this month", "dollars in 30 days",
             "percent of its tightest budget")  # fmt: skip
    cells: Any = (
        (line.key, line.name, line.plan, line.state, to_dollars(line.month),
         to_dollars(line.lately), line.one.percent if line.one else "")
        for line in lines
    )  # fmt: skip
    return exports.table("tenants", heads, cells)
