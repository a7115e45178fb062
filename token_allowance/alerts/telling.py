"""What rules of all kinds say alike, and what they have said."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from django.db import DEFAULT_DB_ALIAS

from token_allowance import keys
from token_allowance.models import Alert, AlertRule
from token_allowance.money import format_usd

CENT = 10_000
FEW_CENTS = 10 * CENT


def alias_of(rule: AlertRule) -> str:
    """The database that the rule, and so the ledger that it is about, is read from."""
    return rule._state.db or DEFAULT_DB_ALIAS


def begun(rule: AlertRule) -> Mapping[str, dt.datetime]:
    """The targets that the rule has told of and that are not over, with when that was."""
    alerts = Alert.objects.using(alias_of(rule)).filter(rule=rule.pk, resolved_at=None, window="")
    return dict(alerts.order_by().values_list("target", "fired_at"))


def usd(micros: int) -> str:
    """An amount as people read it at a glance: whole cents, unless it is a few of them only."""
    if micros >= FEW_CENTS:
        return format_usd(round(micros / CENT) * CENT)
    step = 10 ** max(0, len(str(micros)) - 2)  # two figures that count
    return format_usd(micros // step * step)


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def details(**seen: Any) -> dict[str, Any]:
    """The details of a finding whose value and threshold are no part of a budget."""
    return {"used": None, "amount": None, **seen}


def short(text: str, most: int = 80) -> str:
    """What a title holds of a name or a reason that somebody else has chosen."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def scope(values: Mapping[str, str]) -> str:
    """The target of dimensions that have a value: ``tenant=acme,feature=agent``."""
    return keys.scope(tuple((name, value) for name, value in values.items() if value))
