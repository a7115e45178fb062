"""Alerts: what needs me, and was I told?"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Count, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from token_allowance.alerts import handling, preview, snapshots
from token_allowance.channels.figures import UNITS, amount_text
from token_allowance.limits import DIMENSIONS
from token_allowance.models import Alert, AlertRule, Channel, Delivery
from token_allowance_dashboard import page
from token_allowance_dashboard.access import ACKNOWLEDGE, access, screen

PAGE = 50
TABS = {"open": "Open", "acknowledged": "Acknowledged", "muted": "Muted", "over": "Over"}
HOURS = [(1, "1 hour"), (4, "4 hours"), (8, "8 hours"), (24, "24 hours, the longest")]
#: Words of a severity, as classes of the style sheet.
WORDS = {"info": "ok", "warning": "warning", "critical": "critical"}
PREVIEW_DAYS = 14


class Acknowledging(forms.Form):
    """Nothing to fill in: that somebody looks after it is all that is said."""


class Muting(forms.Form):
    hours = forms.TypedChoiceField(label="Mute for", choices=HOURS, coerce=int, initial=1)
    reason = forms.CharField(label="Reason, which is kept", max_length=500)


@require_safe
@screen()
def alerts(request: HttpRequest) -> HttpResponseBase:
    now = timezone.now()
    state = request.GET.get("state", "open")
    state = state if state in TABS else "open"
    rows = _seen(request)
    counts = rows.aggregate(**{name: Count("pk", filter=_in(name, now)) for name in TABS})
    by_state = {
        f"{one}_count": Count("deliveries", Q(deliveries__state=one)) for one in Delivery.States
    }
    shown = rows.filter(_in(state, now)).select_related("rule").annotate(**by_state)
    found = Paginator(shown.order_by("-fired_at", "-id"), PAGE).get_page(request.GET.get("page"))
    context = {
        "rows": [_line(alert) for alert in found],
        "found": found,
        "states": [(name, words, counts[name]) for name, words in TABS.items()],
        "state": state,
        "no_channel": not Channel.objects.filter(is_active=True).exists(),
    }
    return page.show(request, "alerts.html", context, title="Alerts",
                     question="What needs me, and was I told?", tab="alerts")  # fmt: skip


def _seen(request: HttpRequest) -> QuerySet[Alert]:
    tenants = access(request).tenants
    rows = Alert.objects.all()
    return rows if tenants is None else rows.filter(tenant__in=tenants)


def _in(state: str, now: dt.datetime) -> Q:
    muted = Q(muted_until__gt=now, resolved_at=None)
    if state == "muted":
        return muted
    if state == "over":
        return Q(resolved_at__isnull=False)
    acknowledged = Q(acknowledged_at=None)
    if state == "acknowledged":
        acknowledged = ~acknowledged
    return Q(resolved_at=None) & acknowledged & ~muted


def _line(alert: Any) -> dict[str, Any]:
    top = next(iter(alert.snapshot.get("top_spenders") or ()), None)
    names = ("tenant", "user", "feature", "model")
    who = " / ".join(str(top[name]) for name in names if top.get(name)) if top else ""
    told = {name: getattr(alert, f"{name}_count", 0) for name in ("sent", "pending", "failed")}
    return {
        "alert": alert,
        "word": WORDS[alert.severity],
        "value": _amount(alert.value, alert.unit),
        "threshold": _amount(alert.threshold, alert.unit),
        "top": who or ("calls" if top else ""),
        "share": top.get("percent") if top else None,
        "told": told,
    }


def _amount(value: int | None, unit: str) -> str:
    if value is None:
        return "—"
    return amount_text(value, unit) if unit in UNITS else f"{value:,} {unit}".strip()


def _one(request: HttpRequest, pk: int) -> Alert:
    found = _seen(request).select_related("rule").filter(pk=pk).first()
    if found is None:
        raise Http404
    return found


@require_safe
@screen()
def alert(request: HttpRequest, pk: int) -> HttpResponseBase:
    found, now = _one(request, pk), timezone.now()
    about = {name: value for name in DIMENSIONS if (value := getattr(found, name))}
    since = now - snapshots.LAST
    alias = found._state.db or "default"
    context = {
        **_line(found),
        "about": about,
        "then": found.snapshot.get("top_spenders") or (),
        "minutes": found.snapshot.get("top_minutes"),
        "live": snapshots.spenders(about, since, now, alias, "cost_micros"),
        "deliveries": found.deliveries.select_related("channel").order_by("id"),
        "timeline": _timeline(found),
        "muted": found.muted_until is not None and found.muted_until > now,
    }
    return page.show(request, "alert.html", context, title=found.title, tab="alerts",
                     question="What was seen then, and how is it now?")  # fmt: skip


def _timeline(found: Alert) -> list[tuple[dt.datetime, str]]:
    lines: list[tuple[dt.datetime, str]] = [(found.fired_at, "fired")]
    if found.acknowledged_at:
        lines.append((found.acknowledged_at, f"acknowledged by {found.acknowledged_by}"))
    for sent in found.deliveries.select_related("channel").exclude(sent_at=None):
        lines.append((sent.sent_at or found.fired_at, f"{sent.event} told to {sent.channel}"))
    if found.resolved_at:
        lines.append((found.resolved_at, "over"))
    return sorted(lines, key=lambda line: line[0])


@require_http_methods(["GET", "HEAD", "POST"])
@screen(ACKNOWLEDGE)
def acknowledge(request: HttpRequest, pk: int) -> HttpResponseBase:
    found = _one(request, pk)
    if request.method == "POST":
        if handling.acknowledge(found, request.user.get_username()):
            messages.success(request, f"Acknowledged: {found.title}")
        else:
            messages.info(request, f"{found.acknowledged_by} had acknowledged it before.")
        return redirect(page.address("alert", pk) or "/")
    context = {"alert": found, "form": Acknowledging(), "verb": "Acknowledge"}
    return page.show(request, "alert_confirm.html", context, title="Acknowledge this alert",
                     question="Others will see that you look after it.", tab="alerts")  # fmt: skip


@require_http_methods(["GET", "HEAD", "POST"])
@screen(ACKNOWLEDGE)
def mute(request: HttpRequest, pk: int) -> HttpResponseBase:
    found = _one(request, pk)
    form = Muting(request.POST or None)
    if request.method == "POST" and form.is_valid():
        until = timezone.now() + dt.timedelta(hours=form.cleaned_data["hours"])
        handling.mute(found, until, request.user.get_username(), form.cleaned_data["reason"])
        messages.success(request, f"Muted until {until:%H:%M} UTC: {found.title}")
        return redirect(page.address("alert", pk) or "/")
    context = {"alert": found, "form": form, "verb": "Mute"}
    return page.show(request, "alert_confirm.html", context, title="Mute this alert", tab="alerts",
                     question="Nothing more is sent about it; it is still written down.",
                     status=422 if form.errors else 200)  # fmt: skip


@require_safe
@screen()
def rules(request: HttpRequest) -> HttpResponseBase:
    """The rules, and when those of spending would have told in the last two weeks."""
    now = timezone.now()
    rows = AlertRule.objects.annotate(fired=Count("alerts")).prefetch_related("channels")
    chosen = rows.filter(pk=request.GET["preview"]).first() if _is_id(request, "preview") else None
    would = None
    if chosen is not None and access(request).everything:
        would = preview.would_have_fired(chosen, now, PREVIEW_DAYS)
    context = {
        "rules": rows,
        "channels": Channel.objects.filter(is_active=True),
        "chosen": chosen,
        "would": would,
        "days": PREVIEW_DAYS,
        "previewed": (AlertRule.Kinds.SPEND_RATE, AlertRule.Kinds.TOKENS_PER_REQUEST),
    }
    return page.show(request, "alert_rules.html", context, title="Alert rules", tab="alerts",
                     question="What is told, to whom?")  # fmt: skip


def _is_id(request: HttpRequest, name: str) -> bool:
    text = request.GET.get(name, "")
    return text.isascii() and text.isdecimal() and len(text) < 10
