"""Refusals: how many calls were refused in each minute, why, and by what. Something else counts."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from token_allowance import counters
from token_allowance.admin import names
from token_allowance.admin.base import ReadOnlyAdmin, figure
from token_allowance.admin.paginators import CappedPaginator
from token_allowance.models import Refusal

NAMED: dict[str, Any] = {name: names.column(name) for name in ("tenant", "user", "feature")}


@admin.register(Refusal)
class RefusalAdmin(ReadOnlyAdmin):
    paginator = CappedPaginator
    show_facets = admin.ShowFacets.NEVER  # a facet counts the table
    list_display = ["starts_at", "code", "refused", NAMED["tenant"], NAMED["feature"],
                    NAMED["user"], "model", "by_what"]  # fmt: skip
    search_fields = ["=code", "=tenant", "=feature", "=key"]
    search_help_text = "An exact code, tenant, feature, or key of a budget or switch."
    ordering = ["-starts_at"]
    sortable_by = []
    fields = (
        "starts_at", ("code", "refused"), "by_what", tuple(NAMED.values()), ("provider", "model"),
        ("first_at", "last_at"),
    )  # fmt: skip
    readonly_fields = ["refused", "by_what", *NAMED.values()]

    @admin.display(description="calls")
    def refused(self, row: Refusal) -> str | SafeString:
        return figure(f"{row.calls:,}")

    @admin.display(description="refused by")
    def by_what(self, row: Refusal) -> str:
        """A budget in words: ``tenant acme, user ana: daily cost``; else the scope that refused."""
        if "|" not in row.key:
            return ", ".join(row.key.replace("=", " ").split(","))
        budget = counters.budget_of(row.key)
        named = ", ".join(f"{name} {value}" for name, value in budget.values) or "all calls"
        return f"{named}: {budget.limit.adjective} {budget.limit.unit}"
