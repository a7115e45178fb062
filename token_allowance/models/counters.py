"""What the stores and the triggers keep for themselves."""

from __future__ import annotations

from django.db import models
from django.db.models import Q


class Counter(models.Model):
    """One budget's running figures. Only stores write it; the ledger can always rebuild it.

    A rolling budget's own row is what is locked; each of its slices is a row with its number.
    """

    key = models.TextField(primary_key=True)
    used = models.BigIntegerField(default=0)
    reserved = models.BigIntegerField(default=0)
    since = models.BigIntegerField(default=0)
    part_of = models.TextField(null=True)  # noqa: DJ001 - absent from the index below
    slice = models.BigIntegerField(null=True)

    class Meta:
        indexes = [
            models.Index(
                fields=["part_of", "slice"],
                condition=Q(slice__isnull=False),
                name="allowance_counter_slice",
            )
        ]

    def __str__(self) -> str:
        return self.key


class PolicyVersion(models.Model):
    """A number per kind of policy, raised by triggers inside the writer's own transaction."""

    kind = models.CharField(max_length=16, primary_key=True)
    number = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"
