"""Prices and the other names of priced models."""

from __future__ import annotations

from decimal import Decimal
from functools import reduce
from operator import and_
from typing import Any

from django.db import models
from django.db.models import Q
from django.utils import timezone

from token_allowance import limits
from token_allowance.pricing import RATES


def _dollars(*, null: bool = True) -> models.DecimalField[Decimal | None, Decimal | None]:
    return models.DecimalField(max_digits=16, decimal_places=8, null=null, blank=null)


def _not_negative(rate: str) -> Q:
    return Q(**{f"{rate}__gte": 0}) | Q(**{f"{rate}__isnull": True})


class Price(models.Model):
    """Dollars for each kind of token and unit. Append-only: a change is a new dated row (case C25).

    ``_mtok`` is per million tokens, of the fees the last word says for how many. Null prices mean
    what ``pricing.ModelPrice`` says. ``effective_from`` null means always; ``service_tier`` empty
    means the default tier; ``min_input_tokens`` opens a long-context price (a cliff on the whole
    call, case C09).
    """

    ADMIN = "admin"

    provider = models.CharField(max_length=64)
    model = models.CharField(max_length=limits.IDENTIFIER_LENGTH)
    effective_from = models.DateTimeField(null=True, blank=True)
    min_input_tokens = models.PositiveIntegerField(default=0)
    service_tier = models.CharField(max_length=32, blank=True, default="")
    input_mtok = _dollars(null=False)
    output_mtok = _dollars(null=False)
    cache_read_mtok = _dollars()
    cache_write_5m_mtok = _dollars()
    cache_write_1h_mtok = _dollars()
    input_audio_mtok = _dollars()
    output_audio_mtok = _dollars()
    cache_read_audio_mtok = _dollars()
    input_image_mtok = _dollars()
    output_image_mtok = _dollars()
    web_search_thousand = _dollars()
    file_search_thousand = _dollars()
    request_thousand = _dollars()
    image_each = _dollars()
    audio_hour = _dollars()
    character_million = _dollars()
    page_thousand = _dollars()
    source = models.CharField(max_length=64, default=ADMIN)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["provider", "model", "-effective_from", "service_tier", "min_input_tokens"]
        constraints = [
            models.CheckConstraint(
                condition=reduce(and_, (_not_negative(rate) for rate in RATES)),
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
