"""Tenants: settings of a customer, as far as budgets need them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Exists, Model, OuterRef, Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from token_allowance import conf, limits
from token_allowance.admin import names
from token_allowance.admin.base import NOTHING, AllowanceAdmin
from token_allowance.models import Limit, Reservation, Switch, Tenant

SHOWN = 20
HELP = {
    "key": "What your calls name as tenant=. It cannot be changed later: spend is kept by it.",
    "plan": "Limits may apply to a plan's tenants only.",
    "time_zone": "Its days and months begin at this clock, such as Europe/Berlin. "
    "Empty: the default. A change opens new budgets.",
    "mode": "Observe: calls are admitted and noted. Enforce never undoes an observe elsewhere.",
    "is_active": "Untick to refuse every call of this tenant.",
}


class OwnLimitsFilter(admin.SimpleListFilter):
    title = "limits of its own"
    parameter_name = "own_limits"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "has some"), ("no", "has none")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        own = Exists(Limit.objects.filter(tenant=OuterRef("key"), is_active=True))
        if self.value() in ("yes", "no"):
            return queryset.filter(own if self.value() == "yes" else ~own)
        return queryset


class StoppedFilter(admin.SimpleListFilter):
    title = "switch"
    parameter_name = "switch"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("stopped", "some or all calls stopped"), ("none", "not stopped by name")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        engaged = Switch.objects.filter(tenant=OuterRef("key"), released_at=None)
        stopped = Exists(engaged.exclude(ends_at__lte=timezone.now()))
        if self.value() in ("stopped", "none"):
            return queryset.filter(stopped if self.value() == "stopped" else ~stopped)
        return queryset


@admin.register(Tenant)
class TenantAdmin(AllowanceAdmin):
    list_display = ["key", "name", "plan", "time_zone", "mode", "is_active", "created_at"]
    list_filter = ["is_active", "mode", "plan", OwnLimitsFilter, StoppedFilter]
    search_fields = ["key", "name"]
    search_help_text = "Part of a key or name."
    fields = ["key", "name", "plan", "time_zone", "mode", "is_active", "limits_shown"]

    def get_readonly_fields(self, request: HttpRequest, obj: Tenant | None = None) -> Any:
        shown = ["limits_shown", "known_as"]
        return shown if obj is None else ["key", *shown]

    def get_list_display(self, request: HttpRequest) -> Any:
        """The name that LABELS tells has a column of its own where there are such names."""
        if conf.current().LABELS is None:
            return self.list_display
        key, *others = self.list_display
        return [key, "known_as", *others]

    def get_fields(self, request: HttpRequest, obj: Tenant | None = None) -> Any:
        if obj is None or conf.current().LABELS is None:
            return self.fields
        key, *others = self.fields
        return [key, "known_as", *others]

    def get_form(self, request: HttpRequest, obj: Any = None, *args: Any, **options: Any) -> Any:
        return super().get_form(request, obj, *args, **{"help_texts": HELP, **options})

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """A tenant with calls in the ledger is made inactive instead."""
        if isinstance(obj, Tenant) and Reservation.objects.filter(tenant=obj.key).exists():
            return False
        return super().has_delete_permission(request, obj)

    @admin.display(description="known as")
    def known_as(self, tenant: Tenant) -> str | SafeString:
        label = names.label_of(tenant, "tenant", tenant.key)
        return NOTHING if label is None else names.linked(label)

    @admin.display(description="limits")
    def limits_shown(self, tenant: Tenant) -> str | SafeString:
        """The limits that look at tenants and may meet this one."""
        if not tenant.pk:
            return NOTHING
        meets = Q(tenant=tenant.key) | Q(tenant=limits.EACH, plan__in={"", tenant.plan})
        found = Limit.objects.filter(meets, is_active=True)[:SHOWN]
        if not found:
            return "none"
        page = "admin:token_allowance_limit_change"
        rows = ((reverse(page, args=[row.pk]), row) for row in found)
        items = format_html_join("", '<li><a href="{}">{}</a></li>', rows)
        return format_html('<ul class="plain">{}</ul>', items)
