"""Limits as rows: what an operator writes down."""

from __future__ import annotations

from collections.abc import Collection
from decimal import Decimal
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q, Value
from django.utils import timezone

from token_allowance import levels, limits, money, rolling
from token_allowance.models.fields import Mode, identifier, validate_time_zone
from token_allowance.windows import Window, not_a_window

MICROS = "amount is in millionths of a dollar: $0.50 is 500_000"


def notify_levels() -> list[int]:
    return list(levels.NOTIFY_AT)


class Limit(models.Model):
    """A rule: how much of ``unit`` one window allows. ``amount`` is micro-dollars for cost.

    Each dimension is empty (not looked at), ``*`` (each value has its own budget) or a value.
    """

    class Windows(models.TextChoices):
        MINUTE = Window.MINUTE.value, "a minute"
        HOUR = Window.HOUR.value, "an hour"
        DAY = Window.DAY.value, "a day"
        WEEK = Window.WEEK.value, "a week"
        MONTH = Window.MONTH.value, "a month"
        TOTAL = Window.TOTAL.value, "in total, for ever"
        ROLLING = Window.ROLLING.value, "the last hours or days, at any moment"

    class Units(models.TextChoices):
        COST = limits.Unit.COST.value, "dollars"
        TOKENS = limits.Unit.TOKENS.value, "tokens"
        CALLS = limits.Unit.CALLS.value, "calls"

    tenant = identifier()
    user = identifier()
    session = identifier()
    feature = identifier()
    model = identifier()
    plan = models.CharField(max_length=100, blank=True, default="")
    window = models.CharField(max_length=8, choices=Windows, default=Windows.DAY)
    rolling_seconds = models.PositiveIntegerField(
        default=0,
        db_default=0,
        help_text="The length of a rolling window: a minute to 366 days.",
    )
    anchor_day = models.PositiveSmallIntegerField(
        default=1, help_text="Weeks: 1 is Monday. Months: the day on which the month starts."
    )
    time_zone = models.CharField(
        max_length=64, blank=True, default="", validators=[validate_time_zone]
    )
    unit = models.CharField(max_length=8, choices=Units, default=Units.COST)
    amount = models.BigIntegerField()
    mode = models.CharField(max_length=8, blank=True, default="", choices=Mode)
    notify_at = models.JSONField(
        default=notify_levels,
        db_default=Value(list(levels.NOTIFY_AT), models.JSONField()),
        blank=True,
        help_text="Percent used at which to tell: [70, 90, 100].",
    )
    degrade_at = models.PositiveSmallIntegerField(
        default=90,
        db_default=90,
        null=True,
        blank=True,
        help_text="Percent used from which degrade rules act; empty: never.",
    )
    hard_stop_percent = models.PositiveSmallIntegerField(
        default=100,
        db_default=100,
        help_text="Percent used from which calls are refused: 100 to 120.",
    )
    is_active = models.BooleanField(default=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    # Microseconds since 1970; a trigger moves it when what the limit counts changes.
    tracked_since = models.BigIntegerField(default=0, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["tenant", "user", "session", "feature", "model", "window", "unit"]
        # Not partial, as the constraint below is: SQLite would use that one for no query.
        indexes = [models.Index(fields=["tenant", "user", "session"], name="allowance_limit_of")]
        constraints = [
            models.CheckConstraint(
                condition=Q(amount__gte=0, amount__lte=money.MAX_MICROS),
                name="allowance_limit_amount_in_range",
            ),
            models.CheckConstraint(
                condition=Q(plan="") | Q(tenant=limits.EACH),
                name="allowance_limit_plan_needs_each_tenant",
            ),
            models.CheckConstraint(
                condition=Q(anchor_day=1)
                | Q(window="week", anchor_day__gte=1, anchor_day__lte=7)
                | Q(window="month", anchor_day__gte=1, anchor_day__lte=31),
                name="allowance_limit_anchor_day",
            ),
            models.CheckConstraint(
                condition=Q(window__in=[w.value for w in Window]), name="allowance_limit_window"
            ),
            models.CheckConstraint(
                condition=Q(rolling_seconds=0) & ~Q(window="rolling")
                | Q(
                    window="rolling",
                    rolling_seconds__gte=rolling.SHORTEST_SECONDS,
                    rolling_seconds__lte=rolling.LONGEST_SECONDS,
                ),
                name="allowance_limit_rolling_seconds",
            ),
            models.CheckConstraint(
                condition=Q(unit__in=[u.value for u in limits.Unit]), name="allowance_limit_unit"
            ),
            models.CheckConstraint(
                condition=Q(hard_stop_percent__gte=100, hard_stop_percent__lte=120),
                name="allowance_limit_hard_stop",
            ),
            models.CheckConstraint(
                condition=Q(degrade_at__isnull=True) | Q(degrade_at__gte=1, degrade_at__lte=120),
                name="allowance_limit_degrade_at",
            ),
            models.UniqueConstraint(
                "tenant", "user", "session", "feature", "model", "plan", "window",
                "rolling_seconds", "unit",
                condition=Q(is_active=True),
                name="allowance_limit_once",
                violation_error_message="An active limit with this scope, window and unit exists.",
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.amount_text} {self.window_text} for {self.scope_text}"

    def save(self, *args: Any, **options: Any) -> None:
        """TypeError for an amount that is no integer, ValueError for an unknown window."""
        written = options.get("update_fields")
        given = {n: v for n, v in vars(self).items() if written is None or n in written}
        if "amount" in given and not_an_amount(given["amount"]):
            raise TypeError(self._wanted(given["amount"]))
        if "window" in given and given["window"] not in list(Window):
            raise ValueError(not_a_window(given["window"]))
        super().save(*args, **options)

    @property
    def amount_text(self) -> str:
        if self.unit == limits.Unit.COST:
            return money.format_usd(self.amount)
        return f"{self.amount:,} {self.unit}"

    @property
    def window_text(self) -> str:
        if self.window != Window.ROLLING:
            return f"per {self.window}"
        return f"per rolling {rolling.length(self.rolling_seconds)} window"

    @property
    def scope_text(self) -> str:
        """The scope in words: never raw stars."""
        words = []
        for name in reversed(limits.DIMENSIONS):
            if value := getattr(self, name):
                words.append(f"each {name}" if value == limits.EACH else f"{name} {value}")
        if self.plan:
            words.append(f"on plan {self.plan}")
        return " of ".join(words).replace(" of on plan", " on plan") or "everyone together"

    def _wanted(self, amount: object) -> str:
        unit = MICROS if self.unit == limits.Unit.COST else f"amount is a number of {self.unit}"
        return f"{unit}; an integer, not {amount!r}"

    def clean_fields(self, exclude: Collection[str] | None = None) -> None:
        # Here, as Django's own conversion makes 0 of a float below 1.
        if "amount" not in (exclude or ()) and isinstance(self.amount, float | bool | Decimal):
            raise ValidationError({"amount": self._wanted(self.amount)})
        if "window" not in (exclude or ()) and self.window not in list(Window):
            raise ValidationError({"window": not_a_window(self.window)})
        super().clean_fields(exclude)

    def clean(self) -> None:
        for name in limits.DIMENSIONS:
            value = getattr(self, name)
            if value not in ("", limits.EACH):
                try:
                    limits.checked_identifier(name, value)
                except ValueError as error:
                    raise ValidationError({name: str(error)}) from None
        if not levels.are_levels(self.notify_at):
            raise ValidationError({"notify_at": "Whole percentages from 1 to 120: [70, 90, 100]."})


def not_an_amount(value: object) -> bool:
    """Expressions are the database's to check."""
    if hasattr(value, "resolve_expression"):
        return False
    return isinstance(value, bool) or not isinstance(value, int)
