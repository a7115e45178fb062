"""Limits: what caps exist, which are close, and whom they have met."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.paginator import Paginator
from django.db.models import Q, QuerySet, Sum
from django.http import Http404, HttpRequest, HttpResponseBase
from django.utils import timezone
from django.views.decorators.http import require_safe

from token_allowance import conf, keys, policy
from token_allowance.admin import revisions
from token_allowance.exceptions import StoreUnavailable
from token_allowance.limits import DIMENSIONS, EACH
from token_allowance.models import (
    Adjustment,
    Alert,
    DegradeRule,
    Limit,
    LimitIncrease,
    LimitRevision,
)
from token_allowance_dashboard import holders, page
from token_allowance_dashboard.access import Access, access, screen
from token_allowance_dashboard.rulebook import Rulebook, Standing

PAGE = 50
MOST_RANKED = 300  # limits that are put in order by how full they are
EACH_SHOWN = 3
BUDGETS_SHOWN = 20
TOLD = dt.timedelta(days=30)
REACHED = 100
FILTERS = ("window", "unit", "mode")


@dataclass(slots=True)
class Line:
    """One limit as the list has it."""

    limit: Limit
    standings: list[Standing]
    cheaper: list[str]  # what degrade rules do
    observes: bool
    told: int = 0  # times in 30 days
    overshoot: int = 0

    @property
    def fullest(self) -> Standing | None:
        return self.standings[0] if self.standings else None

    @property
    def percent(self) -> int:
        return self.standings[0].percent if self.standings else -1


def visible(who: Access) -> QuerySet[Limit]:
    """The limits that a person may see: who sees some tenants only, those that tenants have."""
    if who.tenants is None:
        return Limit.objects.all()
    return Limit.objects.filter(tenant__in=[*who.tenants, EACH])


def may_touch(who: Access, limit: Limit) -> bool:
    """Who sees some tenants only may change what names one of them, and nothing else (C91)."""
    return who.everything or (limit.tenant != EACH and who.sees(limit.tenant))


def found(request: HttpRequest, pk: int) -> Limit:
    """Http404 for one that the person may not see."""
    limit = visible(access(request)).filter(pk=pk).first()
    if limit is None:
        raise Http404
    return limit


@require_safe
@screen()
def limits(request: HttpRequest) -> HttpResponseBase:
    now, who = timezone.now(), access(request)
    rows, named = _narrowed(request, visible(who), now)
    ranked = rows.count() <= MOST_RANKED
    shown: Sequence[Limit] = list(rows) if ranked else []
    if not ranked:
        shown = list(Paginator(rows, PAGE).get_page(request.GET.get("page")).object_list)
    lines = _lines(shown, who, now)
    if ranked:
        lines.sort(key=lambda line: -line.percent)
    pages = Paginator(lines if ranked else rows, PAGE).get_page(request.GET.get("page"))
    context = {
        "lines": pages.object_list if ranked else lines,
        "pages": pages,
        "ranked": ranked,
        "named": named,
        "q": request.GET.get("q", ""),
        "all": request.GET.get("show") == "all",
        "any": visible(who).exists(),
        "windows": Limit.Windows.values,
        "units": Limit.Units.choices,
    }
    question = "What caps exist, which are close, and what would happen if I changed one?"
    return page.show(request, "limits.html", context, title="Limits", question=question,
                     tab="limits")  # fmt: skip


@require_safe
@screen()
def limit(request: HttpRequest, pk: int) -> HttpResponseBase:
    now, who = timezone.now(), access(request)
    row = found(request, pk)
    (line,) = _lines([row], who, now, most=BUDGETS_SHOWN)
    context = {
        "limit": row,
        "line": line,
        "standings": line.standings[:BUDGETS_SHOWN],
        "revisions": _history(who, row),
        "increases": _increases(who, row),
        "alerts": _alerts(who, [row.pk], now)[:BUDGETS_SHOWN],
        "corrections": _corrections(who, line.standings[:BUDGETS_SHOWN]),
        "dimensions": [(name, getattr(row, name)) for name in DIMENSIONS if getattr(row, name)],
        "touches": may_touch(who, row),
    }
    title = f"{row.amount_text} {row.window_text} for {row.scope_text}"
    question = "Whose budget is it, how full is it, and who changed it?"
    return page.show(request, "limit.html", context, title=title, question=question, tab="limits")


def _narrowed(
    request: HttpRequest, rows: QuerySet[Limit], now: dt.datetime
) -> tuple[QuerySet[Limit], dict[str, str]]:
    named = {name: v for name in FILTERS if (v := request.GET.get(name, "").replace("\x00", ""))}
    rows = rows.filter(**named)
    if request.GET.get("show") != "all":
        rows = rows.filter(is_active=True).exclude(expires_at__lte=now)
    if sought := request.GET.get("q", "").replace("\x00", "").strip():
        where = Q(plan__icontains=sought)
        for name in DIMENSIONS:
            where |= Q(**{f"{name}__icontains": sought})
        rows = rows.filter(where)
    return rows.order_by(*(Limit._meta.ordering or ()), "pk"), named


def _lines(
    rows: Sequence[Limit], who: Access, now: dt.datetime, most: int = EACH_SHOWN
) -> list[Line]:
    """Each limit with its fullest budgets, by a number of queries that does not grow with them."""
    standings = _standings(rows, who, now, most)
    rules = list(DegradeRule.objects.filter(is_active=True))
    named = policy.confirmed().model
    everywhere = conf.current().MODE == "observe"
    lines = {
        row.pk: Line(row, standings.get(row.pk, []), _cheaper(row, rules, named),
                     everywhere or row.mode == "observe")
        for row in rows
    }  # fmt: skip
    for alert in _alerts(who, list(lines), now):
        line = lines.get(alert.snapshot.get("limit"))
        if line is not None and alert.value is not None:
            line.told += 1
            line.overshoot = max(line.overshoot, alert.value - alert.amount)
    for line in lines.values():
        line.overshoot = max([line.overshoot, *(one.overshoot for one in line.standings)])
    return list(lines.values())


def _standings(
    rows: Sequence[Limit], who: Access, now: dt.datetime, most: int
) -> dict[int, list[Standing]]:
    """The budgets of each limit that are used, the fullest first; none while the store is down."""
    active = [row for row in rows if row.is_active]
    if not active:
        return {}
    book = Rulebook(now)
    wanted = {row.pk for row in active}
    values = holders.values(active, now, who.tenants, most)
    budgets = [b for b in book.opened(values) if b.limit.id in wanted]
    by_limit = defaultdict[int, list[Standing]](list)
    try:
        for one in book.standings(budgets):
            if one.limit.id is not None:
                by_limit[one.limit.id].append(one)
    except StoreUnavailable:
        return {}
    for found_ in by_limit.values():
        found_.sort(key=lambda one: (-one.percent, -one.used, one.whose))
    return by_limit


def _cheaper(row: Limit, rules: Iterable[DegradeRule], named: Any) -> list[str]:
    """The degrade rules that calls of this limit can meet."""
    return [
        str(rule)
        for rule in rules
        if row.feature in ("", EACH) or rule.feature in ("", row.feature)
        if row.model in ("", EACH) or rule.from_model == EACH
        or named(rule.from_model) == named(row.model)
    ]  # fmt: skip


def _alerts(who: Access, numbers: Sequence[int], now: dt.datetime) -> list[Alert]:
    """Each time that a budget of these limits was told to be spent, lately."""
    rows = Alert.objects.filter(
        rung__gte=REACHED, fired_at__gte=now - TOLD, snapshot__limit__in=list(numbers)
    )
    if who.tenants is not None:
        rows = rows.filter(tenant__in=who.tenants)
    return list(rows.order_by("-fired_at"))


def _history(who: Access, row: Limit) -> list[tuple[LimitRevision, str]]:
    """Reasons may name others: of a limit that is not theirs alone, some staff see none."""
    if not may_touch(who, row):
        return []
    rows = LimitRevision.objects.filter(limit_id=row.pk)[: revisions.SHOWN]
    return [(one, revisions.sentence(one, row.unit)) for one in rows]


def _increases(who: Access, row: Limit) -> QuerySet[LimitIncrease]:
    rows = row.increases.all()
    if who.tenants is not None and not may_touch(who, row):
        rows = rows.filter(tenant__in=who.tenants)
    return rows[:BUDGETS_SHOWN]


def _corrections(who: Access, standings: Iterable[Standing]) -> list[dict[str, Any]]:
    """Each correction of these budgets once: one of a rolling window has a row for each slice."""
    where = Q(pk=None)
    for one in standings:
        budget = one.room.budget
        rolls = budget.slice is not None
        where |= Q(key__startswith=budget.key[: -len(keys.OPEN)]) if rolls else Q(key=budget.key)
    rows = Adjustment.objects.filter(where)
    if who.tenants is not None:
        rows = rows.filter(tenant__in=who.tenants)
    named = rows.order_by("-created_at").values("created_at", "by", "reason", *DIMENSIONS)
    return [
        {**one, "whose": ", ".join(f"{n} {one[n]}" for n in DIMENSIONS if one[n])}
        for one in named.annotate(all=Sum("amount"))[:BUDGETS_SHOWN]
    ]
