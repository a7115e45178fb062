"""More than a limit allows, for a while: what an operator grants."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.utils import timezone

from token_allowance import limits, money
from token_allowance.models.fields import identifier
from token_allowance.models.limits import Limit


class LimitIncrease(models.Model):
    """More than a limit allows, until a moment: for one tenant or user, or for the whole limit.

    Added to the limit's amount in each budget that is of this tenant and user. Several add up. It
    moves no counter, and it ends by the application's clock, with no job that has to run.
    """

    limit = models.ForeignKey(
        Limit, on_delete=models.CASCADE, related_name="increases", db_constraint=False
    )
    tenant = identifier()
    user = identifier()
    amount = models.BigIntegerField()
    until = models.DateTimeField()
    reason = models.CharField(max_length=500, blank=True)
    by = models.CharField(max_length=limits.IDENTIFIER_LENGTH, blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["until"], name="allowance_increase_until")]
        constraints = [
            models.CheckConstraint(
                condition=Q(amount__gte=1, amount__lte=money.MAX_MICROS),
                name="allowance_increase_amount_in_range",
            ),
            models.CheckConstraint(
                condition=~Q(tenant=limits.EACH) & ~Q(user=limits.EACH),
                name="allowance_increase_names_values",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.amount:,} {self.limit.unit} more for {self.whom}"

    @property
    def whom(self) -> str:
        named = [f"{n} {v}" for n in ("user", "tenant") if (v := getattr(self, n))]
        return " of ".join(named) or "all of them"

    def clean(self) -> None:
        for name in ("tenant", "user"):
            if not (value := getattr(self, name)):
                continue
            if value == limits.EACH:
                raise ValidationError({name: "* is all of its values at once: leave it empty."})
            rule = getattr(self.limit, name)
            if rule not in (limits.EACH, value):
                raise ValidationError({name: f"The limit has no budget of this {name}."})
