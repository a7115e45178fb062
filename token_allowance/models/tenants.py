"""Customers, as far as budgets need to know them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils import timezone

from token_allowance import limits
from token_allowance.models.fields import Mode, validate_time_zone


class Tenant(models.Model):
    """A customer's settings. Rows are optional: to the budgets a tenant is its key."""

    key = models.CharField(max_length=limits.IDENTIFIER_LENGTH, unique=True)
    name = models.CharField(max_length=200, blank=True)
    plan = models.CharField(max_length=100, blank=True, default="", db_index=True)
    time_zone = models.CharField(
        max_length=64, blank=True, default="", validators=[validate_time_zone]
    )
    mode = models.CharField(max_length=8, blank=True, default="", choices=Mode)
    is_active = models.BooleanField(default=True)
    # Microseconds since 1970; a trigger moves it when the plan or the zone changes.
    tracked_since = models.BigIntegerField(default=0, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["key"]
        constraints = [
            models.CheckConstraint(
                condition=~Q(key__in=["", limits.EACH]), name="allowance_tenant_key_is_a_value"
            ),
        ]

    def __str__(self) -> str:
        return self.name or self.key
