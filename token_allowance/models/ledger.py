"""The ledger: one row per attempt to call a model."""

from __future__ import annotations

import datetime as dt

from django.db import models
from django.db.models import F, Q

from token_allowance import limits
from token_allowance.models.fields import identifier


class Reservation(models.Model):
    """The ledger: one row per real attempt to call a model.

    The id is a UUIDv7 made by us (case C50). ``holds`` lists what was taken from each counter:
    ``[key, unit, amount]``. ``run_path`` names the capped runs the call was made in, the outermost
    first, each ended by "/". ``raw_usage`` keeps the provider's numbers, never its words.
    """

    class States(models.TextChoices):
        RESERVED = "reserved"
        SETTLED = "settled"
        RELEASED = "released"
        EXPIRED = "expired"

    id = models.UUIDField(primary_key=True, editable=False)
    idempotency_key = models.CharField(max_length=limits.IDENTIFIER_LENGTH, blank=True)
    trace_id = models.CharField(max_length=limits.IDENTIFIER_LENGTH, blank=True)
    run_path = models.TextField(blank=True)
    tenant = identifier()
    user = identifier()
    session = identifier()
    feature = identifier()
    provider = models.CharField(max_length=64, blank=True)
    model = models.CharField(max_length=limits.IDENTIFIER_LENGTH, blank=True)
    requested_model = models.CharField(max_length=limits.IDENTIFIER_LENGTH, blank=True)
    state = models.CharField(max_length=8, choices=States)
    flags = models.JSONField(default=list, blank=True)
    reserved_micros = models.BigIntegerField(null=True)
    reserved_tokens = models.BigIntegerField(default=0)
    cost_micros = models.BigIntegerField(null=True)
    cost_exact = models.DecimalField(max_digits=28, decimal_places=10, null=True)
    input_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    cache_read_tokens = models.BigIntegerField(default=0)
    cache_write_tokens = models.BigIntegerField(default=0)
    reasoning_tokens = models.BigIntegerField(default=0)
    usage = models.JSONField(null=True, blank=True)
    raw_usage = models.JSONField(null=True, blank=True)
    price = models.JSONField(null=True, blank=True)
    provider_request_id = models.CharField(max_length=200, blank=True)
    deferred_id = models.CharField(max_length=200, blank=True)
    holds = models.JSONField(default=list)
    created_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField()

    class Meta:
        ordering = ["-id"]
        verbose_name = "reservation"
        indexes = [
            models.Index(fields=["created_at"], name="allowance_ledger_time"),
            models.Index(fields=["tenant", "created_at"], name="allowance_ledger_tenant"),
            models.Index(
                fields=["user", "created_at"], condition=~Q(user=""), name="allowance_ledger_user"
            ),
            models.Index(
                fields=["trace_id"], condition=~Q(trace_id=""), name="allowance_ledger_trace"
            ),
            models.Index(
                fields=["run_path"],
                condition=~Q(run_path=""),
                name="allowance_ledger_run",
                opclasses=["text_pattern_ops"],
            ),
            models.Index(
                fields=["expires_at"], condition=Q(state="reserved"), name="allowance_ledger_lease"
            ),
            models.Index(
                fields=["settled_at"],
                condition=Q(settled_at__isnull=False),
                name="allowance_ledger_settled",
            ),
            models.Index(
                fields=["provider_request_id"],
                condition=~Q(provider_request_id=""),
                name="allowance_ledger_request",
            ),
            models.Index(
                fields=["deferred_id"],
                condition=~Q(deferred_id=""),
                name="allowance_ledger_deferred",
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "idempotency_key"],
                condition=~Q(idempotency_key=""),
                name="allowance_ledger_idempotent",
            ),
            models.CheckConstraint(
                condition=Q(cost_micros__isnull=True) | Q(cost_micros__gte=0),
                name="allowance_ledger_cost_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(cost_exact__isnull=True)
                | Q(cost_micros__gte=F("cost_exact"), cost_micros__lt=F("cost_exact") + 1),
                name="allowance_ledger_cost_rounded_up_once",
            ),
        ]

    def __str__(self) -> str:
        return str(self.id)

    @property
    def overage_micros(self) -> int:
        """Micro-dollars settled above the reservation."""
        return max(0, (self.cost_micros or 0) - (self.reserved_micros or 0))

    @property
    def duration(self) -> dt.timedelta | None:
        return self.settled_at - self.created_at if self.settled_at else None
