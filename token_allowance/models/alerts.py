"""Alerts: the rules that fire them, and each one that was fired, with what was seen then."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils import timezone

from token_allowance.models.channels import Channel
from token_allowance.models.fields import Severity, identifier


class AlertRule(models.Model):
    """When to tell. ``threshold`` and ``minutes`` are read as the kind says in ``alerts/``.

    ``error`` says why the last evaluation failed; empty: it did not.
    """

    class Kinds(models.TextChoices):
        BUDGET = "budget", "a budget reaches 70, 90 or 100 percent"
        FORECAST = "forecast", "a budget will be spent before its window ends"
        SPEND_RATE = "spend_rate", "spending far above what is usual at this time"
        TOKENS_PER_REQUEST = "tokens_per_request", "requests far longer than is usual"
        REQUESTS_PER_USER = "requests_per_user", "one user calls too often"
        UNPRICED = "unpriced", "a model without a price is used"
        ESTIMATED = "estimated", "too much is charged by estimate"
        STORE_DOWN = "store_down", "the store cannot be asked, or the ledger is behind"
        EXPIRED = "expired", "reservations end without a word"
        DRILL_OVERDUE = "drill_overdue", "the kill switch was not drilled lately"
        SILENT = "silent", "the ledger is silent"
        SWITCH = "switch", "a kill switch was pulled or released"
        CHANNEL = "channel", "a message could not be delivered"

    kind = models.CharField(max_length=20, choices=Kinds)
    name = models.CharField(max_length=100, unique=True)
    severity = models.CharField(max_length=8, choices=Severity, default=Severity.WARNING)
    threshold = models.DecimalField(max_digits=18, decimal_places=4, null=True, blank=True)
    minutes = models.PositiveIntegerField(null=True, blank=True)
    is_active = models.BooleanField(default=True)
    evaluated_at = models.DateTimeField(null=True, blank=True, editable=False)
    error = models.CharField(max_length=300, blank=True, default="", editable=False)
    channels = models.ManyToManyField(
        Channel, blank=True, help_text="None: every channel that takes this severity."
    )

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Alert(models.Model):
    """One thing that was told, once: per rule, target, window, rung and amount of the limit.

    ``target`` is a counter's key, or dimensions such as ``feature=agent``. Alerts without a
    ``window`` are open until resolved, and open once per rule and target. ``snapshot`` is what was
    seen when it fired and is never changed.
    """

    rule = models.ForeignKey(AlertRule, on_delete=models.PROTECT, related_name="alerts")
    target = models.TextField()
    window = models.CharField(max_length=64, blank=True, default="")
    rung = models.PositiveSmallIntegerField(default=0)
    amount = models.BigIntegerField(default=0)
    severity = models.CharField(max_length=8, choices=Severity)
    tenant = identifier()
    user = identifier()
    session = identifier()
    feature = identifier()
    model = identifier()
    title = models.CharField(max_length=300)
    value = models.BigIntegerField(null=True)
    threshold = models.BigIntegerField(null=True)
    unit = models.CharField(max_length=16, blank=True, default="")
    snapshot = models.JSONField(default=dict)
    fired_at = models.DateTimeField(default=timezone.now)
    seen_at = models.DateTimeField(default=timezone.now)  # when it was last found so
    resolved_at = models.DateTimeField(null=True, blank=True)
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_by = models.CharField(max_length=200, blank=True, default="")
    muted_until = models.DateTimeField(null=True, blank=True)
    muted_by = models.CharField(max_length=200, blank=True, default="")
    mute_reason = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        ordering = ["-fired_at", "-id"]
        permissions = [("acknowledge_alert", "Can acknowledge and mute alerts")]
        indexes = [models.Index(fields=["target", "fired_at"], name="allowance_alert_target")]
        constraints = [
            models.UniqueConstraint(
                fields=["rule", "target", "window", "rung", "amount"],
                condition=~Q(window=""),
                name="allowance_alert_once",
            ),
            models.UniqueConstraint(
                fields=["rule", "target"],
                condition=Q(window="", resolved_at__isnull=True),
                name="allowance_alert_open_once",
            ),
        ]

    def __str__(self) -> str:
        return self.title
