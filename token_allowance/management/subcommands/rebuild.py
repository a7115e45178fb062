"""``rebuild``: the counters set to what the ledger says."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import OutputWrapper
from django.utils import timezone

from token_allowance import conf, money
from token_allowance.counters import budget_of
from token_allowance.limits import Unit

HELP = "Set every counter of an open window to what the ledger says; print what had drifted."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(out: OutputWrapper, options: dict[str, Any]) -> None:
    drifts = conf.store().rebuild(timezone.now())
    for drift in drifts:
        budget = budget_of(drift.key)
        scope = ", ".join(f"{name} {value}" for name, value in budget.values) or "global"
        out.write(f"{scope}, {budget.limit.adjective} {budget.limit.unit}:")
        for name, (before, after) in (("used", drift.used), ("reserved", drift.reserved)):
            if before != after:
                unit = budget.limit.unit
                out.write(f"  {name} was {_amount(before, unit)}, is {_amount(after, unit)}")
    out.write(f"{len(drifts):,} counters had drifted." if drifts else "No counter had drifted.")


def _amount(amount: int, unit: Unit) -> str:
    return money.format_usd(amount) if unit is Unit.COST else f"{amount:,}"
