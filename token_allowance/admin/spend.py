"""Roll-ups: what quarters of an hour have used. Something else writes them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from token_allowance.admin import names
from token_allowance.admin.base import ReadOnlyAdmin, usd
from token_allowance.admin.paginators import CappedPaginator
from token_allowance.models import HourlySpend

NAMED: dict[str, Any] = {name: names.column(name) for name in ("tenant", "user", "feature")}


@admin.register(HourlySpend)
class HourlySpendAdmin(ReadOnlyAdmin):
    paginator = CappedPaginator
    show_facets = admin.ShowFacets.NEVER  # a facet counts the table
    list_display = ["starts_at", NAMED["tenant"], NAMED["feature"], NAMED["user"], "model",
                    "calls", "cost", "estimated", "unpriced_calls"]  # fmt: skip
    search_fields = ["=tenant"]
    search_help_text = "An exact tenant."
    ordering = ["-starts_at"]
    sortable_by = []
    fields = (
        "starts_at", tuple(NAMED.values()), ("provider", "model"),
        ("calls", "estimated_calls", "unpriced_calls"), ("cost", "estimated", "cost_exact"),
        ("input_tokens", "output_tokens"),
        ("cache_read_tokens", "cache_write_tokens", "reasoning_tokens"),
    )  # fmt: skip
    readonly_fields = ["cost", "estimated", *NAMED.values()]

    @admin.display(description="cost")
    def cost(self, row: HourlySpend) -> str | SafeString:
        return usd(row.cost_micros)

    @admin.display(description="of it estimated")
    def estimated(self, row: HourlySpend) -> str | SafeString:
        return usd(row.estimated_micros)
