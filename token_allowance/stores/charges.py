"""What one ledger row adds to the budgets that it belongs to."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from token_allowance import keys, rolling
from token_allowance.limits import Amounts, Budget, Unit


def extended(held: Sequence[Sequence[Any]], more: Amounts) -> list[list[Any]]:
    """The holds of a ledger row after this much was added to each."""
    return [[key, unit, amount + more.of(Unit(unit))] for key, unit, amount in held]


def corrects(row: Mapping[str, Any], final: Mapping[str, Any]) -> bool:
    """Does this end of a call replace what was taken for it when its lease ran out?"""
    if row["state"] != "expired":
        return False
    return final["state"] == "settled" or row["settled_at"] is not None


def charged(row: Mapping[str, Any], unit: Unit) -> int:
    """What a final ledger row adds to ``used`` of a budget in this unit."""
    if row["settled_at"] is None or row["state"] not in ("settled", "expired"):
        return 0
    if unit is Unit.COST:
        return int(row["cost_micros"] or 0)
    return int(row["input_tokens"] + row["output_tokens"]) if unit is Unit.TOKENS else 1


def held(row: Mapping[str, Any], unit: Unit) -> int:
    """What an open ledger row adds to ``reserved`` of a budget in this unit."""
    if unit is Unit.COST:
        return int(row["reserved_micros"] or 0)
    return int(row["reserved_tokens"]) if unit is Unit.TOKENS else 1


def in_scope(row: Mapping[str, Any], budget: Budget) -> bool:
    """Does this ledger row belong to the budget: its values and its window?"""
    if budget.is_cap:
        return all(row[name].startswith(path) for name, path in budget.values)
    return budget.window.contains(created_at(row)) and all(row[n] == v for n, v in budget.values)


def created_at(row: Mapping[str, Any]) -> dt.datetime:
    """When the reservation was made: it decides in which window, and in which slice, it counts."""
    moment: dt.datetime | str = row["created_at"]
    if isinstance(moment, str):
        moment = dt.datetime.fromisoformat(moment)
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def held_in(row: Mapping[str, Any], budget: Budget) -> str:
    """The key of the counter in which this ledger row of the budget is held."""
    if budget.slice is None:
        return budget.key
    number = rolling.slice_at(budget.limit.rolling_seconds, created_at(row))
    return keys.of_slice(budget.key, number)
