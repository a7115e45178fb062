"""Kill switches and their history."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils import timezone

from token_allowance.models.fields import identifier
from token_allowance.models.history import History


class Switch(models.Model):
    """A stop for calls that match every dimension it names; none named stops everything."""

    tenant = identifier()
    user = identifier()
    feature = identifier()
    model = identifier()
    percent = models.PositiveSmallIntegerField(
        default=100, db_default=100, help_text="Of the callers it names, always the same ones."
    )
    cuts_streams = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Answers that are being streamed are cut off too.",
    )
    reason = models.CharField(max_length=500)
    by = models.CharField(max_length=200)
    engaged_at = models.DateTimeField(default=timezone.now)
    ends_at = models.DateTimeField(null=True, blank=True)
    released_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-engaged_at"]
        verbose_name_plural = "switches"
        permissions = [
            ("flip_switch", "Can stop and resume calls of a tenant, user, feature or model"),
            ("flip_global_switch", "Can stop and resume all calls"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "user", "feature", "model"],
                condition=Q(released_at__isnull=True),
                name="allowance_switch_engaged_once",
            ),
            models.CheckConstraint(
                condition=Q(percent__gte=1, percent__lte=100), name="allowance_switch_percent"
            ),
        ]

    def __str__(self) -> str:
        named = [
            f"{d} {v}" for d in ("tenant", "user", "feature", "model") if (v := getattr(self, d))
        ]
        return ", ".join(named) or "everything"


class SwitchEvent(History):
    """What happened to a switch, and how it stood then. Append-only.

    ``source`` is where it was ordered: dashboard, admin, command, drill or code; "" by itself.
    """

    class Actions(models.TextChoices):
        ENGAGED = "engaged"
        RELEASED = "released"

    switch = models.ForeignKey(Switch, on_delete=models.PROTECT, related_name="events")
    action = models.CharField(max_length=8, choices=Actions)
    at = models.DateTimeField(default=timezone.now)
    by = models.CharField(max_length=200)
    reason = models.CharField(max_length=500, blank=True)
    ends_at = models.DateTimeField(null=True, blank=True)
    percent = models.PositiveSmallIntegerField(default=100, db_default=100)
    cuts_streams = models.BooleanField(default=False, db_default=False)
    source = models.CharField(max_length=16, blank=True, default="", db_default="")

    class Meta:
        ordering = ["at", "id"]

    def __str__(self) -> str:
        return f"{self.action} {self.at:%Y-%m-%d %H:%M:%S} by {self.by}"
