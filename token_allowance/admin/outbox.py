"""What stands between a store and the ledger: how far it is, what failed, what waits."""

from __future__ import annotations

from django.contrib import admin

from token_allowance.admin.base import ReadOnlyAdmin
from token_allowance.admin.paginators import CappedPaginator
from token_allowance.models import DeadLetter, Outbox, PendingSettlement


@admin.register(Outbox)
class OutboxAdmin(ReadOnlyAdmin):
    list_display = ["prefix", "epoch", "watermark", "drained_at", "opened_at"]


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnlyAdmin):
    paginator = CappedPaginator
    list_display = ["created_at", "prefix", "event_id", "error_shown"]
    search_fields = ["=event_id"]
    search_help_text = "An exact event id."
    sortable_by = []
    fields = ("created_at", "prefix", "event_id", "size", "error")
    readonly_fields = ["size"]

    @admin.display(description="error")
    def error_shown(self, row: DeadLetter) -> str:
        return row.error.partition("\n")[0][:200]

    @admin.display(description="event")
    def size(self, row: DeadLetter) -> str:
        """Its bytes are nobody's to read here: they are kept as they came."""
        return f"{len(row.payload):,} bytes"


@admin.register(PendingSettlement)
class PendingSettlementAdmin(ReadOnlyAdmin):
    paginator = CappedPaginator
    list_display = ["id", "created_at"]
    search_fields = ["=id"]
    search_help_text = "An exact id."
    ordering = ["-id"]
    sortable_by = []
