"""The history of limits: who changed what, and why."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from token_allowance.models.history import History


class LimitRevision(History):
    """One change of one limit, append-only. ``before`` and ``after`` hold the fields that changed;
    before is empty for a new limit, after for one that was deleted, which the revision outlives."""

    limit_id = models.BigIntegerField(db_index=True)
    scope = models.CharField(max_length=500)
    at = models.DateTimeField(default=timezone.now)
    by = models.CharField(max_length=200)
    source = models.CharField(max_length=20)
    reason = models.CharField(max_length=500, blank=True, default="")
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)

    class Meta:
        ordering = ["-at", "-id"]
        verbose_name = "revision of a limit"
        verbose_name_plural = "revisions of limits"

    def __str__(self) -> str:
        return f"{self.scope} {self.at:%Y-%m-%d %H:%M} by {self.by}"
