"""Switches: looked at here; they are engaged and released elsewhere, with a reason."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString

from token_allowance.admin import names
from token_allowance.admin.base import ReadOnlyAdmin
from token_allowance.admin.generics import SwitchEvents
from token_allowance.models import Switch, SwitchEvent


class EngagedFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("engaged", "engaged"), ("over", "released or ended")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        over = Q(released_at__isnull=False) | Q(ends_at__lte=timezone.now())
        if self.value() == "engaged":
            return queryset.exclude(over)
        return queryset.filter(over) if self.value() == "over" else queryset


class SwitchEventInline(SwitchEvents):
    model = SwitchEvent
    fields = ["at", "action", "by", "reason"]
    extra = 0
    can_delete = False
    verbose_name_plural = "history"

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return request.user.has_perm("token_allowance.view_switch")


@admin.register(Switch)
class SwitchAdmin(ReadOnlyAdmin):
    list_display = ["stops", "state", "engaged_at", "by", "ends_at", "reason"]
    list_filter = [EngagedFilter]
    search_fields = ["tenant", "user", "feature", "model", "reason"]
    search_help_text = "Part of a tenant, user, feature, model or reason."
    fields = ("stops", "known_as", "state", "reason", "by", "engaged_at", "ends_at", "released_at")
    readonly_fields = fields
    inlines = [SwitchEventInline]

    @admin.display(description="stops calls of")
    def stops(self, switch: Switch) -> str:
        return names.described(str(switch), switch)

    @admin.display(description="known as")
    def known_as(self, switch: Switch) -> str | SafeString:
        return names.known_as(switch)

    @admin.display(description="state")
    def state(self, switch: Switch) -> str:
        if switch.released_at:
            return "released"
        ended = switch.ends_at is not None and switch.ends_at <= timezone.now()
        return "ended" if ended else "engaged: stops calls"
