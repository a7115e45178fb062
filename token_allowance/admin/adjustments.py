"""Adjustments: looked at here; they are made by ``allowance.adjust`` or ``manage.py allowance``."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from token_allowance import counters, keys, limits
from token_allowance.admin import amounts, names
from token_allowance.admin.base import ReadOnlyAdmin, figure
from token_allowance.admin.paginators import CappedPaginator
from token_allowance.models import Adjustment

NAMED: dict[str, Any] = {name: names.column(name) for name in limits.DIMENSIONS}


class UnitFilter(admin.SimpleListFilter):
    """By the units there are, not by those in the table, which would have to be read for them."""

    title = "unit"
    parameter_name = "unit"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(unit.value, unit.value) for unit in limits.Unit]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(unit=self.value()) if self.value() else queryset


@admin.register(Adjustment)
class AdjustmentAdmin(ReadOnlyAdmin):
    paginator = CappedPaginator
    list_display = ["created_at", "budget", "change", "by", "reason"]
    list_filter = [UnitFilter]
    show_facets = admin.ShowFacets.NEVER
    search_fields = ["tenant", "user", "session", "feature", "model", "reason", "by"]
    search_help_text = "Part of a tenant, user, session, feature, model, reason or person."
    sortable_by = []
    fields = ("created_at", tuple(NAMED.values()), "budget", "change", "by", "reason", "key")
    readonly_fields = ["budget", "change", *NAMED.values()]

    @admin.display(description="budget")
    def budget(self, row: Adjustment) -> str:
        """Whose, and in which window: ``user u_1 of tenant acme, daily from 2026-11-30 00:00``."""
        key = keys.whole(row.key) or row.key
        limit = counters.budget_of(key).limit
        named = ", ".join(f"{name} {value}" for name, value in names.values(row)) or "all calls"
        start = row.key.rpartition("|")[2]
        since = ""
        if key == row.key and start != keys.OPEN:
            since = f" from {keys.parsed(start):%Y-%m-%d %H:%M} UTC"
        return names.described(f"{named}: {limit.adjective} {row.unit}{since}", row)

    @admin.display(description="change")
    def change(self, row: Adjustment) -> str | SafeString:
        sign = "+" if row.amount > 0 else ""
        return figure(sign + amounts.text(row.amount, row.unit))
