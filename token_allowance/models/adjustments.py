"""Corrections of what a budget has used, which stand in the ledger beside the calls."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from token_allowance import limits
from token_allowance.models.fields import identifier


class Adjustment(models.Model):
    """A correcting record: so much is added to what one budget has used, by whom and why.

    ``key`` is the counter's, so it holds in one window; ``amount`` is in the budget's own unit and
    negative where something is given back (case C68). Nothing in the ledger is edited.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    key = models.TextField()
    tenant = identifier()
    user = identifier()
    session = identifier()
    feature = identifier()
    model = models.CharField(max_length=limits.IDENTIFIER_LENGTH, blank=True, default="")
    unit = models.CharField(max_length=8)
    amount = models.BigIntegerField()
    reason = models.CharField(max_length=500)
    by = models.CharField(max_length=limits.IDENTIFIER_LENGTH)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["key"], name="allowance_adjustment_key")]

    def __str__(self) -> str:
        return f"{self.amount:+,} {self.unit} on {self.key}"
