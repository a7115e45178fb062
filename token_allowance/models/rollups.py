"""Sums of the ledger, for screens that must stay fast over millions of rows."""

from __future__ import annotations

from django.db import models

from token_allowance import limits
from token_allowance.models.fields import identifier


class HourlySpend(models.Model):
    """What the calls that began in one quarter of an hour have used, by who and what they were for.

    Quarters, because some zones are 30 or 45 minutes off the hour and days must still come out
    right. Counts ledger rows that are final and charged; ``calls`` counts them, ``estimated_calls``
    those charged without the provider's word. Names are copied, so they survive deleted users.
    """

    MINUTES = 15

    starts_at = models.DateTimeField()
    tenant = identifier()
    user = identifier()
    feature = identifier()
    provider = models.CharField(max_length=64, blank=True, default="")
    model = models.CharField(max_length=limits.IDENTIFIER_LENGTH, blank=True, default="")
    calls = models.BigIntegerField(default=0)
    estimated_calls = models.BigIntegerField(default=0)
    unpriced_calls = models.BigIntegerField(default=0)
    cost_micros = models.BigIntegerField(default=0)
    cost_exact = models.DecimalField(max_digits=28, decimal_places=10, default=0)
    estimated_micros = models.BigIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    cache_read_tokens = models.BigIntegerField(default=0)
    cache_write_tokens = models.BigIntegerField(default=0)
    reasoning_tokens = models.BigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "hourly spend"
        permissions = [
            ("view_dashboard", "Can see the dashboard"),
            ("export_spend", "Can export spending"),
        ]
        indexes = [
            models.Index(fields=["tenant", "starts_at"], name="allowance_spend_tenant"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["starts_at", "tenant", "user", "feature", "provider", "model"],
                name="allowance_spend_once",
            )
        ]

    def __str__(self) -> str:
        return f"{self.starts_at:%Y-%m-%d %H:%M} {self.tenant} {self.feature} {self.model}"
