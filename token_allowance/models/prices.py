"""Prices and the other names of priced models."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils import timezone

from token_allowance import limits


class Price(models.Model):
    """Dollars per million tokens, by kind. Append-only: a change is a new dated row (case C25).

    ``effective_from`` null means always; ``service_tier`` empty means the default tier;
    ``min_input_tokens`` opens a long-context price (a cliff on the whole call, case C09). A null
    cache price means: at the input price.
    """

    ADMIN = "admin"

    provider = models.CharField(max_length=64)
    model = models.CharField(max_length=limits.IDENTIFIER_LENGTH)
    effective_from = models.DateTimeField(null=True, blank=True)
    min_input_tokens = models.PositiveIntegerField(default=0)
    service_tier = models.CharField(max_length=32, blank=True, default="")
    input_mtok = models.DecimalField(max_digits=16, decimal_places=8)
    output_mtok = models.DecimalField(max_digits=16, decimal_places=8)
    cache_read_mtok = models.DecimalField(max_digits=16, decimal_places=8, null=True, blank=True)
    cache_write_5m_mtok = models.DecimalField(
        max_digits=16, decimal_places=8, null=True, blank=True
    )
    cache_write_1h_mtok = models.DecimalField(
        max_digits=16, decimal_places=8, null=True, blank=True
    )
    source = models.CharField(max_length=64, default=ADMIN)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["provider", "model", "-effective_from", "service_tier", "min_input_tokens"]
        constraints = [
            models.CheckConstraint(
                condition=Q(input_mtok__gte=0, output_mtok__gte=0)
                & (Q(cache_read_mtok__isnull=True) | Q(cache_read_mtok__gte=0))
                & (Q(cache_write_5m_mtok__isnull=True) | Q(cache_write_5m_mtok__gte=0))
                & (Q(cache_write_1h_mtok__isnull=True) | Q(cache_write_1h_mtok__gte=0)),
                name="allowance_price_not_negative",
            ),
            models.UniqueConstraint(
                fields=["provider", "model", "source", "service_tier", "min_input_tokens",
                        "effective_from"],
                condition=Q(effective_from__isnull=False),
                name="allowance_price_once_dated",
            ),
            models.UniqueConstraint(
                fields=["provider", "model", "source", "service_tier", "min_input_tokens"],
                condition=Q(effective_from__isnull=True),
                name="allowance_price_once_always",
            ),
        ]  # fmt: skip
        indexes = [models.Index(fields=["model", "provider"], name="allowance_price_model")]

    def __str__(self) -> str:
        return f"{self.provider} {self.model}: ${self.input_mtok:f} in, ${self.output_mtok:f} out"

    def save(self, *args: Any, **options: Any) -> None:
        if not self._state.adding:
            raise ValueError("Prices are append-only: add a row with a later effective_from.")
        super().save(*args, **options)


class ModelAlias(models.Model):
    """Another name for a priced model: a deployment, a prefix of a router (cases C22, C24)."""

    alias = models.CharField(max_length=limits.IDENTIFIER_LENGTH, unique=True)
    provider = models.CharField(max_length=64)
    model = models.CharField(max_length=limits.IDENTIFIER_LENGTH)

    class Meta:
        ordering = ["alias"]
        verbose_name_plural = "model aliases"

    def __str__(self) -> str:
        return f"{self.alias} → {self.provider} {self.model}"
