"""The rules that are there without anybody having written them."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from token_allowance.models import AlertRule, Severity

KINDS = AlertRule.Kinds


@dataclass(frozen=True, slots=True)
class Default:
    """``threshold`` and ``minutes`` are read as the module of the kind says."""

    kind: str
    severity: str
    threshold: Decimal | None = None
    minutes: int | None = None

    @property
    def name(self) -> str:
        return str(KINDS(self.kind).label).capitalize()


DEFAULTS = (
    Default(KINDS.BUDGET, Severity.WARNING),
    Default(KINDS.FORECAST, Severity.WARNING),
    Default(KINDS.SPEND_RATE, Severity.CRITICAL, Decimal(4), 15),
    Default(KINDS.TOKENS_PER_REQUEST, Severity.WARNING, Decimal(4), 15),
    Default(KINDS.REQUESTS_PER_USER, Severity.WARNING, Decimal(60), 1),
    Default(KINDS.UNPRICED, Severity.WARNING, Decimal(1), 60),
    Default(KINDS.ESTIMATED, Severity.WARNING, Decimal("0.2"), 60),
    Default(KINDS.STORE_DOWN, Severity.CRITICAL, Decimal(60), 5),
    Default(KINDS.EXPIRED, Severity.WARNING, Decimal(5), 15),
    Default(KINDS.DRILL_OVERDUE, Severity.INFO),
    Default(KINDS.SILENT, Severity.CRITICAL, Decimal(20), 15),
    Default(KINDS.SWITCH, Severity.CRITICAL, None, 60),
)


def ensure(alias: str) -> None:
    """Write the default rule of each kind that has no rule.

    So what an operator changes stays, and so does a rule that is switched off. Whoever wants to
    hear nothing of a kind switches its rule off: a deleted one is written again.
    """
    rules = AlertRule.objects.using(alias)
    present = set(rules.values_list("kind", flat=True))
    missing = [default for default in DEFAULTS if default.kind not in present]
    rules.bulk_create(
        [
            AlertRule(
                kind=d.kind, name=d.name, severity=d.severity, threshold=d.threshold,
                minutes=d.minutes,
            )
            for d in missing
        ],
        ignore_conflicts=True,
    )  # fmt: skip
