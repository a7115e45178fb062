"""Alerts: what was told, what was seen then, and who looks after it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.db.models import Count, Model, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from token_allowance.admin import names
from token_allowance.admin.base import NOTHING, ReadOnlyAdmin, figure
from token_allowance.admin.generics import Deliveries
from token_allowance.alerts import handling
from token_allowance.channels.figures import UNITS, amount_text
from token_allowance.models import Alert, Delivery

Shown = str | SafeString
MUTES = [(1, "1 hour"), (4, "4 hours"), (8, "8 hours"), (24, "24 hours")]
NAMED: dict[str, Any] = {
    name: names.column(name) for name in ("tenant", "user", "session", "feature")
}
SPENDER = ("tenant", "user", "feature", "model")
LONGEST_NAME = 30
#: Keys of a snapshot that have columns or a place of their own on the page.
APART = frozenset(("top_spenders", "top_minutes", "since", "taken_at"))


class MuteForm(ActionForm):
    """What the action "mute" asks for, beside the choice of an action."""

    hours = forms.TypedChoiceField(
        label="for", choices=MUTES, coerce=int, required=False, initial=1
    )
    reason = forms.CharField(label="because", max_length=500, required=False)


class StateFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("open", "open"),
            ("acknowledged", "acknowledged"),
            ("muted", "muted"),
            ("resolved", "over"),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        muted = Q(muted_until__gt=timezone.now())
        match self.value():
            case "open":
                return queryset.filter(resolved_at=None, acknowledged_at=None).exclude(muted)
            case "acknowledged":
                return queryset.filter(resolved_at=None, acknowledged_at__isnull=False)
            case "muted":
                return queryset.filter(muted)
            case "resolved":
                return queryset.filter(resolved_at__isnull=False)
        return queryset


class DeliveryInline(Deliveries):
    model = Delivery
    fields = ("channel", "event", "state", "attempts", "created_at", "sent_at", "error")
    readonly_fields = fields
    ordering = ["id"]
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return request.user.has_perm("token_allowance.view_alert")


@admin.register(Alert)
class AlertAdmin(ReadOnlyAdmin):
    list_display = ["title", "state", "severity", "since", "top_spender", "sent"]
    list_filter = [StateFilter, "severity", "rule"]
    search_fields = ["=tenant", "title"]
    search_help_text = "A tenant, or part of a title."
    date_hierarchy = "fired_at"
    actions = ["acknowledge", "mute", "unmute"]
    action_form = MuteForm
    inlines = [DeliveryInline]
    fieldsets = (
        (None, {"fields": ("title", ("state", "severity"), "rule", ("value_shown",
                                                                    "threshold_shown"))}),
        ("Of", {"fields": (tuple(NAMED.values()), "model", ("target", "window"))}),
        ("When", {"fields": (("fired_at", "resolved_at"), ("acknowledged_at", "acknowledged_by"),
                             ("muted_until", "muted_by", "mute_reason"))}),
        ("What was seen then", {"fields": ("spenders", "seen")}),
    )  # fmt: skip
    readonly_fields = ["state", "value_shown", "threshold_shown", "spenders", "seen",
                       *NAMED.values()]  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        counts = {
            f"{state}_count": Count("deliveries", Q(deliveries__state=state))
            for state in Delivery.States
        }
        alerts = super().get_queryset(request).select_related("rule")
        counted: QuerySet[Any] = alerts.annotate(**counts)
        return counted

    def has_handle_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("token_allowance.change_alert")

    @admin.display(description="state")
    def state(self, alert: Alert) -> str:
        now = timezone.now()
        if alert.resolved_at:
            return "over"
        if alert.muted_until and now < alert.muted_until:
            return f"muted until {timezone.localtime(alert.muted_until):%H:%M}"
        return f"acknowledged by {alert.acknowledged_by}" if alert.acknowledged_at else "open"

    @admin.display(description="since", ordering="fired_at")
    def since(self, alert: Alert) -> str:
        at = timezone.localtime(alert.fired_at)
        return f"{at.day} {at:%b %H:%M}"

    @admin.display(description="top spender")
    def top_spender(self, alert: Alert) -> str:
        for one in alert.snapshot.get("top_spenders") or ():
            named = " / ".join(str(one[name])[:LONGEST_NAME] for name in SPENDER if one.get(name))
            return f"{named or 'calls'}, {one.get('percent', 0)} %"
        return NOTHING

    @admin.display(description="messages")
    def sent(self, alert: Any) -> str:
        words = {"sent": "sent", "pending": "on their way", "failed": "given up"}
        found = [(getattr(alert, f"{state}_count", 0), word) for state, word in words.items()]
        return ", ".join(f"{count} {word}" for count, word in found if count) or NOTHING

    @admin.display(description="value")
    def value_shown(self, alert: Alert) -> Shown:
        return _amount(alert.value, alert.unit)

    @admin.display(description="told from")
    def threshold_shown(self, alert: Alert) -> Shown:
        return _amount(alert.threshold, alert.unit)

    @admin.display(description="top spenders")
    def spenders(self, alert: Alert) -> Shown:
        found = alert.snapshot.get("top_spenders") or ()
        if not found:
            return NOTHING
        heads = format_html_join("", "<th>{}</th>", ((h,) for h in HEADS))
        lines = format_html_join("", "<tr>{}</tr>", ((_line(one),) for one in found))
        minutes = alert.snapshot.get("top_minutes")
        caption = f"the last {minutes} minutes" if minutes else ""
        return format_html(
            '<table class="sum spenders"><caption>{}</caption><tr>{}</tr>{}</table>',
            caption,
            heads,
            lines,
        )

    @admin.display(description="besides")
    def seen(self, alert: Alert) -> Shown:
        return format_html_join("", "<div>{}: {}</div>", _facts(alert)) or NOTHING

    @admin.action(description="Acknowledge", permissions=["handle"])
    def acknowledge(self, request: HttpRequest, alerts: QuerySet[Alert]) -> None:
        done = [alert for alert in alerts if handling.acknowledge(alert, _who(request))]
        for alert in done:
            self.log_change(request, alert, "acknowledged")
        self.message_user(request, f"{len(done)} acknowledged.")

    @admin.action(description="Mute for … because …", permissions=["handle"])
    def mute(self, request: HttpRequest, alerts: QuerySet[Alert]) -> None:
        hours = next((h for h, _ in MUTES if str(h) == request.POST.get("hours")), MUTES[0][0])
        reason = request.POST.get("reason", "").strip()
        until = timezone.now() + dt.timedelta(hours=hours)
        for alert in alerts:
            try:
                handling.mute(alert, until, _who(request), reason)
            except ValueError as error:
                self.message_user(request, f"Nothing is muted: {error}.", messages.ERROR)
                return
            self.log_change(request, alert, f"muted for {hours} h: {reason}")
        self.message_user(request, f"{len(alerts)} muted for {dict(MUTES)[hours]}.")

    @admin.action(description="End muting", permissions=["handle"])
    def unmute(self, request: HttpRequest, alerts: QuerySet[Alert]) -> None:
        for alert in alerts:
            handling.unmute(alert)
            self.log_change(request, alert, "no longer muted")
        self.message_user(request, f"{len(alerts)} no longer muted.")


HEADS = ("feature", "model", "who", "cost", "tokens", "share", "calls", "usual")


def _line(one: dict[str, Any]) -> SafeString:
    who = " of ".join(str(one[name]) for name in ("user", "tenant") if one.get(name))
    usual = one.get("usual_calls")
    cells = (
        one.get("feature") or NOTHING,
        one.get("model") or NOTHING,
        who or NOTHING,
        amount_text(one.get("cost_micros") or 0, "cost"),
        f"{one.get('tokens') or 0:,}",
        f"{one.get('percent') or 0} %",
        f"{one.get('calls') or 0:,}",
        NOTHING if usual is None else f"{usual:,}",
    )
    return format_html_join("", "<td>{}</td>", ((cell,) for cell in cells))


def _facts(alert: Alert) -> Iterator[tuple[str, Any]]:
    """What else the snapshot says, in words."""
    for name, value in alert.snapshot.items():
        if name in APART or value in (None, "", [], {}):
            continue
        if name in ("used", "reserved", "amount") and alert.unit in UNITS:
            value = amount_text(value, alert.unit)
        yield name.replace("_", " "), value


def _amount(value: int | None, unit: str) -> Shown:
    if value is None:
        return NOTHING
    return figure(amount_text(value, unit) if unit in UNITS else f"{value:,} {unit}".strip())


def _who(request: HttpRequest) -> str:
    return str(request.user.get_username())
