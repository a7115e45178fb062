"""The ledger: one row per call, read-only."""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString

from token_allowance import limits, money
from token_allowance.admin import arithmetic, names
from token_allowance.admin.base import NOTHING, ReadOnlyAdmin, figure, usd
from token_allowance.admin.paginators import CappedPaginator
from token_allowance.models import Reservation

NAMED: dict[str, Any] = {name: names.column(name) for name in limits.DIMENSIONS}
SHOWN = ["time", "flags_shown", "reserved", "settled", "difference", "sum_shown", "took"]
RECENT = 1_000  # calls whose features are offered as a filter: the whole table is never read
FLAGS = ("would_refuse", "unattributed", "unpriced", "estimated", "uncertain", "interrupted",
         "late", "conflict", "degraded", "not_degraded")  # fmt: skip
FLAGGED_AMONG = 20_000
SPANS = {"15m": ("last 15 minutes", 15), "hour": ("last hour", 60), "day": ("last 24 hours", 1440)}


class FeatureFilter(admin.SimpleListFilter):
    title = "feature"
    parameter_name = "feature"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        newest = Reservation.objects.order_by("-id").values_list("feature", flat=True)[:RECENT]
        names = {name for name in newest if name}
        if (chosen := request.GET.get(self.parameter_name)) and chosen not in names:
            names.add(chosen)
        return [(name, name) for name in sorted(names)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(feature=self.value()) if self.value() else queryset


class TimeFilter(admin.SimpleListFilter):
    title = "time"
    parameter_name = "time"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(key, label) for key, (label, _) in SPANS.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() not in SPANS:
            return queryset
        _, minutes = SPANS[str(self.value())]
        return queryset.filter(created_at__gte=timezone.now() - dt.timedelta(minutes=minutes))


class FlagFilter(admin.SimpleListFilter):
    title = "flag"
    parameter_name = "flag"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(flag, flag.replace("_", " ")) for flag in FLAGS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Among the newest calls: no index finds a rare flag in a long ledger (case C89)."""
        if self.value() not in FLAGS:
            return queryset
        newest = Reservation.objects.order_by("-id").values("pk")[:FLAGGED_AMONG]
        return queryset.filter(pk__in=newest, flags__icontains=f'"{self.value()}"')


@admin.register(Reservation)
class ReservationAdmin(ReadOnlyAdmin):
    paginator = CappedPaginator
    show_facets = admin.ShowFacets.NEVER  # a facet counts the table
    list_display = ["time", NAMED["tenant"], NAMED["feature"], NAMED["user"], NAMED["model"],
                    "state", "reserved", "settled", "difference", "flags_shown"]  # fmt: skip
    list_filter = ["state", FlagFilter, FeatureFilter, TimeFilter]
    search_fields = ["id"]
    search_help_text = "An exact id, trace id, idempotency key or provider's request id."
    ordering = ["-id"]
    sortable_by = []
    fieldsets = [
        ("Call", {"fields": [("time", "state", "flags_shown"),
                             ("provider", NAMED["model"], "requested_model"),
                             "provider_request_id"]}),
        ("Money", {"fields": [("reserved", "settled", "difference"), "sum_shown"]}),
        ("Charged to", {"fields": [tuple(NAMED[name] for name in limits.DIMENSIONS[:-1]),
                                   ("trace_id", "idempotency_key")]}),
        ("Tokens", {"fields": [("input_tokens", "output_tokens", "reserved_tokens"),
                               ("cache_read_tokens", "cache_write_tokens", "reasoning_tokens"),
                               "raw_usage"]}),
        ("Times", {"fields": [("created_at", "settled_at", "took"), "expires_at",
                              "deferred_id"]}),
    ]  # fmt: skip
    readonly_fields = [*SHOWN, *NAMED.values(), *(field.name for field in Reservation._meta.fields)]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Exact values only, the indexed ones first."""
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            found = queryset.filter(pk=UUID(term))
            if found.exists():
                return found, False
        except ValueError:
            pass
        found = queryset.filter(Q(trace_id=term) | Q(provider_request_id=term))
        return (found if found.exists() else queryset.filter(idempotency_key=term)), False

    @admin.display(description="time")
    def time(self, row: Reservation) -> str:
        return f"{timezone.localtime(row.created_at):%Y-%m-%d %H:%M:%S}"

    @admin.display(description="reserved")
    def reserved(self, row: Reservation) -> str | SafeString:
        return usd(row.reserved_micros)

    @admin.display(description="settled")
    def settled(self, row: Reservation) -> str | SafeString:
        unpriced = row.state == Reservation.States.SETTLED and row.cost_micros is None
        return figure("unknown") if unpriced else usd(row.cost_micros)

    @admin.display(description="difference")
    def difference(self, row: Reservation) -> str | SafeString:
        micros = arithmetic.difference(row)
        if micros is None:
            return NOTHING
        sign = "+" if micros > 0 else ""
        return figure(sign + money.format_usd(micros))

    @admin.display(description="flags")
    def flags_shown(self, row: Reservation) -> str:
        return ", ".join(row.flags) or NOTHING

    @admin.display(description="how the cost came about")
    def sum_shown(self, row: Reservation) -> str | SafeString:
        return arithmetic.written_out(row)

    @admin.display(description="took")
    def took(self, row: Reservation) -> str:
        return NOTHING if row.duration is None else f"{row.duration.total_seconds():.1f} seconds"
