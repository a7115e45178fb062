"""What stands between a store that is not the ledger's own database and the ledger."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from token_allowance import limits


class Outbox(models.Model):
    """How far the ledger has taken over the events of one store, named by its key prefix.

    ``watermark`` is the id of the last event that is in the ledger; it moves in the transaction
    that writes the events' rows, so that each is taken over exactly once (protocol 7). ``epoch``
    counts how often the store was begun anew from the ledger, ``opened_at`` says when last.
    """

    prefix = models.CharField(max_length=limits.IDENTIFIER_LENGTH, primary_key=True)
    watermark = models.CharField(max_length=64, default="0-0")
    epoch = models.BigIntegerField(default=0)
    opened_at = models.DateTimeField(null=True)
    drained_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name_plural = "outboxes"

    def __str__(self) -> str:
        return f"{self.prefix} epoch {self.epoch}"


class DeadLetter(models.Model):
    """An event that no ledger row could be made of, kept as it came (protocol 8)."""

    prefix = models.CharField(max_length=limits.IDENTIFIER_LENGTH)
    event_id = models.CharField(max_length=64)
    payload = models.BinaryField()
    error = models.TextField()
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["prefix", "event_id"], name="allowance_dead_letter_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.event_id}: {self.error}"


class PendingSettlement(models.Model):
    """How a call ended, written down because its store could not be told; applied later, once."""

    id = models.UUIDField(primary_key=True, editable=False)
    document = models.JSONField()
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return str(self.id)
