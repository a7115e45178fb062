"""Health: can I trust these numbers?"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from typing import Any

from django.db.models import Count, F, Sum
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from token_allowance import conf, limits
from token_allowance.exceptions import StoreUnavailable
from token_allowance.management.subcommands import doctor
from token_allowance.models import (
    DeadLetter,
    Delivery,
    HourlySpend,
    Mark,
    PendingSettlement,
    Reservation,
)
from token_allowance_dashboard import page, spending
from token_allowance_dashboard.access import access, screen

Figure = tuple[str, str, str]  # a name, its figure in words, and what it means
DAY = dt.timedelta(days=1)
WORDS = {"ok": "ok", "warning": "warning", "problem": "blocked"}  # the class of a finding's colour


@require_safe
@screen()
def health(request: HttpRequest) -> HttpResponseBase:
    if not access(request).everything:
        return _not_for_some(request)
    now = timezone.now()
    found = findings()
    context = {
        "findings": [(level, WORDS[level], text) for level, text in found],
        "problems": sum(level == "problem" for level, _ in found),
        "warnings": sum(level == "warning" for level, _ in found),
        "figures": list(figures(now)),
        "marks": Mark.objects.order_by("job"),
        "fail_mode": _fail_mode(),
    }
    return page.show(request, "health.html", context, title="Health",
                     question="Can I trust these numbers?", tab="health")  # fmt: skip


@require_safe
@screen()
def health_json(request: HttpRequest) -> HttpResponse:
    """For a monitor: 503 where something is broken."""
    if not access(request).everything:
        return JsonResponse({"detail": "not for staff of some tenants"}, status=403)
    found = findings()
    broken = any(level == "problem" for level, _ in found)
    body = {
        "ok": not broken,
        "findings": [{"level": level, "text": text} for level, text in found],
        "figures": {name: value for name, value, _ in figures(timezone.now())},
    }
    return JsonResponse(body, status=503 if broken else 200)


def _not_for_some(request: HttpRequest) -> HttpResponse:
    context = {"limited": True}
    return page.show(request, "health.html", context, title="Health",
                     question="Can I trust these numbers?", tab="health")  # fmt: skip


def findings() -> list[tuple[str, str]]:
    """What ``manage.py allowance doctor`` says; a check that fails is a finding itself."""
    found: list[tuple[str, str]] = []
    for check in doctor.CHECKS:
        try:
            found += list(check())
        except StoreUnavailable as error:
            found.append(("problem", f"The store cannot be asked: {error}"))
    return found


def figures(now: dt.datetime) -> Iterator[Figure]:
    yield _latency(now)
    edge = spending.edge_or_none(now)
    if edge is not None and edge.as_of is not None:
        lag = max(0, int((now - edge.as_of).total_seconds()))
        yield "roll-ups behind", f"{lag:,} s", "screens add the ledger's last calls to them"
    flying = Reservation.objects.filter(state="reserved")
    overdue = flying.filter(expires_at__lte=now).count()
    yield "calls in flight", f"{flying.count():,}", "reserved and not settled"
    yield "overdue", f"{overdue:,}", "their lease has ended, and nobody has expired them yet"
    sums = HourlySpend.objects.filter(starts_at__gte=now - DAY).aggregate(
        micros=Sum("cost_micros"), estimated=Sum("estimated_micros"), unpriced=Sum("unpriced_calls")
    )
    share = 100 * (sums["estimated"] or 0) // sums["micros"] if sums["micros"] else 0
    yield "charged by estimate", f"{share} %", "of the dollars of 24 hours"
    yield "unpriced calls", f"{sums['unpriced'] or 0:,}", "in 24 hours: their cost is not known"
    yield "dead letters", f"{DeadLetter.objects.count():,}", "events that no row could hold"
    waiting = PendingSettlement.objects.count()
    yield "unapplied settlements", f"{waiting:,}", "the store could not be told yet"
    states = dict(Delivery.objects.values_list("state").annotate(number=Count("id")).order_by())
    late = Delivery.objects.filter(state="pending", created_at__lt=now - dt.timedelta(minutes=5))
    yield "messages given up", f"{states.get('failed', 0):,}", "see their channel in the admin"
    yield "messages waiting", f"{late.count():,}", "for more than 5 minutes"
    over = Reservation.objects.filter(
        created_at__gte=now - DAY, state="settled", cost_micros__gt=F("reserved_micros")
    ).count()
    yield "above their reservation", f"{over:,}", "calls of 24 hours that cost more than estimated"


def _latency(now: dt.datetime) -> Figure:
    probe = limits.open_budget(limits.Limit(), {}, now)
    began = time.perf_counter()
    try:
        conf.store().usage([probe])
    except StoreUnavailable:
        return "store", "cannot be asked", "calls are handled as ON_STORE_ERROR says"
    milliseconds = 1000 * (time.perf_counter() - began)
    return "store", f"{milliseconds:.1f} ms", f"{type(conf.store()).__name__}, one question"


def _fail_mode() -> dict[str, Any]:
    settings = conf.current()
    return {"admits": settings.admits_without_store, "mode": settings.MODE}
