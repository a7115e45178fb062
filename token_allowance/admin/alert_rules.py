"""Alert rules: what people are told of, from when on, and where."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from token_allowance.admin.base import NOTHING, AllowanceAdmin, figure
from token_allowance.alerts import kinds
from token_allowance.models import AlertRule

Shown = str | SafeString


@admin.register(AlertRule)
class AlertRuleAdmin(AllowanceAdmin):
    """There is one for each kind from the start; whoever wants less switches it off."""

    list_display = ["name", "is_active", "severity", "open_alerts", "health", "told_where"]
    list_filter = ["is_active", "severity"]
    search_fields = ["name"]
    fieldsets = (
        (None, {"fields": ("name", "kind", "about", "is_active")}),
        ("When", {"fields": ("severity", ("threshold", "minutes"))}),
        ("Where", {"fields": ("channels",)}),
        ("How it goes", {"fields": ("health", "evaluated_at")}),
    )
    readonly_fields = ["about", "health", "evaluated_at"]
    filter_horizontal = ["channels"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rules = super().get_queryset(request).prefetch_related("channels")
        open_count = Count("alerts", Q(alerts__resolved_at=None))
        counted: QuerySet[Any] = rules.annotate(open_count=open_count)
        return counted

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """The kind of a rule stays: its alerts are of that kind."""
        return [*self.readonly_fields, "kind"] if obj else list(self.readonly_fields)

    @admin.display(description="told where")
    def told_where(self, rule: AlertRule) -> str:
        named = ", ".join(channel.name for channel in rule.channels.all())
        return named or "by severity"

    @admin.display(description="open alerts")
    def open_alerts(self, rule: Any) -> Shown:
        return figure(f"{rule.open_count:,}")

    @admin.display(description="health")
    def health(self, rule: AlertRule) -> str:
        if rule.error:
            return f"fails: {rule.error}"
        if not rule.is_active:
            return "switched off"
        return "looked at" if rule.evaluated_at else "not looked at yet"

    @admin.display(description="about")
    def about(self, rule: AlertRule) -> Shown:
        """As the kind's own module says it, so that it stays true."""
        said = kinds.described(rule.kind).replace("``", "")
        return format_html('<div class="said">{}</div>', said) if said else NOTHING
