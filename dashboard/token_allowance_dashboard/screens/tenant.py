"""One tenant: what is happening with this customer, and what can I do for them?"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponseBase
from django.utils import timezone
from django.views.decorators.http import require_safe

from token_allowance.channels import figures
from token_allowance.exceptions import StoreUnavailable
from token_allowance.limits import DIMENSIONS, EACH, Unit
from token_allowance.limits import Limit as LimitValue
from token_allowance.models import Alert, Limit, LimitIncrease, LimitRevision, Refusal, Switch
from token_allowance.models import Tenant as TenantRow
from token_allowance.windows import Window
from token_allowance_dashboard import charts, holders, page, periods, spending, tenancy
from token_allowance_dashboard.access import access, screen
from token_allowance_dashboard.rulebook import Rulebook, Standing
from token_allowance_dashboard.spending import Edge, Scope

TOP = 10
SHOWN = 20
EACH_SHOWN = 3
LATELY = dt.timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Applied:
    """A limit that applies to a tenant, with its fullest budget there. None: nothing is used."""

    limit: Limit
    source: str
    one: Standing | None
    raises: bool  # more of it can be granted to this tenant


@require_safe
@screen()
def tenant(request: HttpRequest, key: str) -> HttpResponseBase:
    now, who = timezone.now(), access(request)
    who.check(key)
    row = TenantRow.objects.filter(key=key).first()
    scope, at = Scope({"tenant": key}, who.tenants), spending.edge(now)
    month = periods.of({"range": "month", "zone": request.GET.get("zone", "")}, now)
    features = spending.grouped(month.start, month.end, scope, ["feature"], at)
    users = spending.grouped(month.start, month.end, scope, ["user"], at)
    if row is None and not features and not _is_known(key):
        raise Http404
    stack = applied(key, row.plan if row else "", who.everything, now)
    tightest = min((a.one for a in stack if a.one and _is_whole(a.one)), key=tenancy.fullness,
                   default=None)  # fmt: skip
    stopped = tenancy.is_stopped(key, row is None or row.is_active, tenancy.stopping(now))
    total = sum(one.figures.cost_micros for one in features)
    context = {
        "key": key,
        "row": row,
        "stack": stack,
        "standing_state": tenancy.state(tightest, stopped),
        "tightest": tightest,
        "verdict": _verdict(tightest, stopped, now),
        "total": total,
        "calls": sum(one.figures.calls for one in features),
        "chart": _burn(scope, month, tightest, at),
        "features": features[:TOP],
        "users": users[:TOP],
        "users_number": len(users),
        "period": month,
        **_events(key, who.everything, now),
    }
    title = f"{row.name} ({key})" if row and row.name else key
    question = "What is happening with this customer, and what can I do for them?"
    return page.show(request, "tenant.html", context, title=title, question=question,
                     tab="tenants")  # fmt: skip


def applied(key: str, plan: str, everything: bool, now: dt.datetime) -> list[Applied]:
    """The limits that apply to calls of this tenant, the fullest first. What holds for calls of
    everybody is for those who see everything."""
    where = Q(tenant=key) | Q(tenant=EACH, plan__in={"", plan})
    if everything:
        where |= Q(tenant="", user="", session="", feature="", model="")
    rows = list(Limit.objects.filter(where, is_active=True).exclude(expires_at__lte=now))
    book, found = Rulebook(now, where=where), dict[int | None, Standing]()
    values = holders.values([r for r in rows if r.tenant], now, frozenset([key]), EACH_SHOWN)
    values |= {()} if any(not row.tenant for row in rows) else set()
    values |= {(("tenant", key),)}
    opened = book.opened(values)
    try:
        for one in sorted(book.standings(opened), key=tenancy.fullness):
            found.setdefault(one.limit.id, one)
    except StoreUnavailable:
        pass
    overridden = _overridden([book.rule(row) for row in rows])
    by = _authors([row.pk for row in rows if row.tenant == key])
    stack = [
        Applied(row, _source(row, by.get(row.pk, "")), found.get(row.pk), bool(row.tenant))
        for row in rows
        if row.pk not in overridden
    ]
    return sorted(stack, key=lambda one: -(one.one.percent if one.one else -1))


def _overridden(rules: list[LimitValue]) -> set[int | None]:
    """Those of these limits before which a narrower one of the same kind goes."""
    others = [name for name in DIMENSIONS if name != "tenant"]
    return {
        rule.id
        for rule in rules
        for narrow in rules
        if narrow.overrides(rule) and all(getattr(narrow, n) == getattr(rule, n) for n in others)
    }


def _authors(numbers: list[int]) -> dict[int, str]:
    """Who wrote each limit last, and when."""
    rows = LimitRevision.objects.filter(limit_id__in=numbers).order_by("at", "id")
    return {row.limit_id: f" by {row.by} {row.at:%-d %b %Y}" for row in rows}


def _source(row: Limit, by: str) -> str:
    if not row.tenant:
        return "for everyone together"
    if row.tenant != EACH:
        return f"set for this tenant{by}"
    return f"default for plan {row.plan}" if row.plan else "default for each tenant"


def _is_whole(one: Standing) -> bool:
    """Is it the tenant's own, as a whole?"""
    return [name for name, _ in one.values] == ["tenant"]


def _is_known(key: str) -> bool:
    return Limit.objects.filter(tenant=key).exists() or spending.first_and_last(
        Scope({"tenant": key})
    ) != (None, None)


def _verdict(tightest: Standing | None, stopped: bool, now: dt.datetime) -> str:
    if tightest is None:
        begun = "All its calls are stopped." if stopped else "Nothing refuses its calls:"
        return begun if stopped else f"{begun} no limit looks at this tenant as a whole."
    unit, reset = tightest.unit, tightest.resets_at
    used = figures.amount_text(tightest.used, unit)
    said = (
        f"{used} of {figures.amount_text(tightest.amount, unit)} ({tightest.percent} %) of its "
        f"{tightest.limit.adjective} limit is used"
    )
    until = f" until {figures.until_text(reset.isoformat(), now.isoformat())}" if reset else ""
    if stopped:
        return f"All its calls are stopped. {said}."
    match tightest.state:
        case "blocked":
            return f"New calls are refused{until}: {said}."
        case "observing":
            return f"{said}{until}; its limit only observes, so nothing is refused."
        case "degraded":
            return f"{said}: degrade rules act{until}, nothing is refused yet."
    return f"{said}; nothing is refused."


def _burn(scope: Scope, month: periods.Period, tightest: Standing | None, at: Edge) -> Any:
    """What was spent of this month, day by day, with the amount of a monthly budget across it."""
    days = month.days()
    parts = [(start, end) for _, start, end in days]
    values, so_far = [], 0
    for bucket in spending.buckets(parts, scope, [], at):
        so_far += bucket[()].cost_micros if bucket else 0
        values.append(so_far)
    levels = []
    if tightest and tightest.limit.unit is Unit.COST and tightest.limit.window is Window.MONTH:
        levels = [(tightest.amount, "its limit")]
    labels = [f"{day:%-d %b}" for day, _, _ in days]
    return charts.curve("burn", "Spent this month", labels, values, levels=levels)


def _events(key: str, everything: bool, now: dt.datetime) -> dict[str, Any]:
    refusals = Refusal.objects.filter(tenant=key, starts_at__gte=now - LATELY)
    switches = Q(tenant=key)
    if everything:
        switches |= Q(tenant="", user="", feature="", model="")
    engaged = Switch.objects.filter(switches, released_at=None).exclude(ends_at__lte=now)
    alerts = Alert.objects.filter(tenant=key, fired_at__gte=now - LATELY)
    increases = LimitIncrease.objects.filter(tenant=key, until__gt=now).select_related("limit")
    return {
        "refusals": refusals.order_by("-starts_at", "code")[:SHOWN],
        "switches": engaged[:SHOWN],
        "alerts": alerts.order_by("-fired_at")[:SHOWN],
        "increases": increases[:SHOWN],
    }
