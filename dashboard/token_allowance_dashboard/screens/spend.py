"""Spend explorer: who spent what, on what, when?"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone
from django.views.decorators.http import require_safe

from token_allowance.money import to_dollars
from token_allowance_dashboard import charts, exports, page, periods, spending
from token_allowance_dashboard.access import EXPORT, access, screen
from token_allowance_dashboard.periods import Period
from token_allowance_dashboard.spending import DIMENSIONS, Figures, Scope

MOST_SHOWN = 10
MOST_SERIES = 6
OTHER = "other"
NONE = "none"


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table: a group of calls, or all that are not shown by themselves."""

    key: str
    figures: Figures
    before: int  # micro-dollars in the period before
    others: int = 0  # how many groups it stands for

    @property
    def change_percent(self) -> int | None:
        return (
            100 * (self.figures.cost_micros - self.before) // self.before if self.before else None
        )


def scope_of(request: HttpRequest) -> Scope:
    """The calls that the address names, of those that the person may see."""
    named = {name: request.GET[name] for name in DIMENSIONS if name in request.GET}
    named = {n: "" if v == NONE else v.replace("\x00", "") for n, v in named.items() if v}
    return Scope(named, access(request).tenants)


@require_safe
@screen()
def spend(request: HttpRequest) -> HttpResponseBase:
    now = timezone.now()
    period, scope = periods.of(request.GET, now, "7d"), scope_of(request)
    group = _choice(request, "group", DIMENSIONS, "feature")
    at = spending.edge(now)
    rows = spending.grouped(period.start, period.end, scope, [group], at)
    if request.GET.get("format") == "csv":
        if not access(request).may(EXPORT):
            raise PermissionDenied
        return _csv(group, rows)
    before = spending.grouped(period.before.start, period.before.end, scope, [group], at)
    lines = _lines(rows, {row.keys[0]: row.figures.cost_micros for row in before})
    total = sum((row.figures for row in rows), Figures())
    context = {
        "period": period,
        "ranges": periods.CHOICES,
        "group": group,
        "groups": DIMENSIONS,
        "named": scope.named,
        "lines": lines,
        "total": total,
        "total_before": sum(row.figures.cost_micros for row in before),
        "number": len(rows),
        "chart": _chart(period, scope, group, [row.keys[0] for row in rows], at),
    }
    question = "Who spent what, on what, when?"
    return page.show(request, "spend.html", context, title="Spend", question=question, tab="spend")


def _choice(request: HttpRequest, name: str, known: tuple[str, ...], default: str) -> str:
    found = request.GET.get(name, default)
    return found if found in known else default


def _lines(rows: list[spending.Row], before: dict[str, int]) -> list[Line]:
    shown = [Line(r.keys[0], r.figures, before.get(r.keys[0], 0)) for r in rows[:MOST_SHOWN]]
    rest = rows[MOST_SHOWN:]
    if rest:
        figures = sum((row.figures for row in rest), Figures())
        was = sum(before.get(row.keys[0], 0) for row in rest)
        shown.append(Line(OTHER, figures, was, others=len(rest)))
    return shown


def _chart(
    period: Period, scope: Scope, group: str, order: list[str], at: spending.Edge
) -> charts.Chart:
    parts = _parts(period)
    found = spending.buckets([(start, end) for _, start, end in parts], scope, [group], at)
    names = order[:MOST_SERIES]
    series = [(name or NONE, [_micros(b, name) for b in found]) for name in names]
    if len(order) > MOST_SERIES:
        rest = [sum(f.cost_micros for k, f in b.items() if k[0] not in names) for b in found]
        series.append((OTHER, rest))
    labels = [label for label, _, _ in parts]
    open_end = bool(parts) and period.end >= timezone.now() - dt.timedelta(minutes=1)
    return charts.stacked(
        "spend", f"Spent by {group}, {period.words}", labels, series, last_is_open=open_end
    )


def _micros(bucket: dict[tuple[str, ...], Figures], name: str) -> int:
    return bucket[(name,)].cost_micros if (name,) in bucket else 0


def _parts(period: Period) -> list[tuple[str, dt.datetime, dt.datetime]]:
    """Days; hours where the period is short, quarters where it is shorter still."""
    if period.length > dt.timedelta(hours=49):
        return [(f"{day:%-d %b}", start, end) for day, start, end in period.days()]
    short = period.length <= dt.timedelta(hours=3)
    step = periods.QUARTER if short else dt.timedelta(hours=1)
    parts, start = [], period.start
    while start < period.end:
        end = min(start + step, period.end)
        parts.append((f"{start.astimezone(period.zone):%H:%M}", start, end))
        start = end
    return parts


def _csv(group: str, rows: list[spending.Row]) -> HttpResponseBase:
    heads = (group, "dollars", *spending.SUMS)
    cells = (
        (row.keys[0], to_dollars(row.figures.cost_micros),
         *(getattr(row.figures, name) for name in spending.SUMS))
        for row in rows
    )  # fmt: skip
    return exports.table(f"spend-by-{group}", heads, cells)
