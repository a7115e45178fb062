"""Where alerts are sent, and each message on its way."""

from __future__ import annotations

import base64
import secrets

from django.db import models
from django.utils import timezone

from token_allowance.models.fields import Severity

SECRET_BYTES = 32


def new_secret() -> str:
    """A key for signatures, written as Standard Webhooks writes it."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode("ascii")


class Channel(models.Model):
    """A place that alerts are sent to.

    ``address``: mail addresses parted by commas, or a URL; empty for the signal. ``secret`` signs
    what a webhook is sent.
    """

    class Kinds(models.TextChoices):
        EMAIL = "email", "e-mail"
        SLACK = "slack", "Slack, or what takes the same"
        WEBHOOK = "webhook", "webhook, signed"
        SIGNAL = "signal", "Python signal alert_sent"

    name = models.CharField(max_length=100, unique=True)
    kind = models.CharField(max_length=8, choices=Kinds)
    address = models.TextField(blank=True, default="")
    secret = models.CharField(max_length=100, default=new_secret, editable=False)
    least_severity = models.CharField(max_length=8, choices=Severity, default=Severity.INFO)
    is_active = models.BooleanField(default=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Delivery(models.Model):
    """One message to one channel: written with its alert, sent afterwards, again if it fails."""

    class Events(models.TextChoices):
        FIRED = "fired"
        RESOLVED = "resolved"
        TEST = "test"

    class States(models.TextChoices):
        PENDING = "pending"
        SENT = "sent"
        FAILED = "failed", "given up"

    alert = models.ForeignKey(
        "token_allowance.Alert", on_delete=models.CASCADE, related_name="deliveries", null=True
    )
    channel = models.ForeignKey(Channel, on_delete=models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=8, choices=Events)
    payload = models.JSONField()
    state = models.CharField(max_length=8, choices=States, default=States.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    error = models.CharField(max_length=300, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)
    next_at = models.DateTimeField(default=timezone.now)
    claimed_until = models.DateTimeField(null=True, blank=True)
    sent_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        verbose_name_plural = "deliveries"
        indexes = [
            models.Index(
                fields=["next_at"],
                condition=models.Q(state="pending"),
                name="allowance_delivery_due",
            )
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["alert", "channel", "event"],
                condition=models.Q(alert__isnull=False) & ~models.Q(event="test"),
                name="allowance_delivery_once",
            )
        ]

    def __str__(self) -> str:
        return f"{self.event} to {self.channel}: {self.state}"
