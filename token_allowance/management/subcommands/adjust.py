"""``adjust``: what a budget has used, corrected by an operator."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import CommandError, OutputWrapper

from token_allowance import money
from token_allowance.adjustments import adjust
from token_allowance.limits import DIMENSIONS, Unit
from token_allowance.windows import Window

HELP = "Correct what the budgets of exactly these values have used: by an amount, or to nothing."
NAMED = (*DIMENSIONS, "everything", "unit", "window", "limit", "amount", "reset", "reason", "by")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name in DIMENSIONS:
        parser.add_argument(f"--{name}", metavar="KEY", help=f"Budgets of this {name}.")
    parser.add_argument(
        "--everything", action="store_true", help="Instead: the budgets of all calls together."
    )
    parser.add_argument("--unit", choices=[*Unit], help="Of --amount; cost if left out.")
    parser.add_argument("--window", choices=[*Window], help="Only budgets of this window.")
    parser.add_argument("--limit", type=int, metavar="ID", help="Only the budgets of this limit.")
    change = parser.add_mutually_exclusive_group(required=True)
    change.add_argument("--amount", help="Dollars, tokens or calls to add; -2.50 gives back.")
    change.add_argument("--reset", action="store_true", help="Take off all that is used.")
    parser.add_argument("--reason", required=True, help="Why: it stays in the books.")
    parser.add_argument("--by", required=True, help="Who decided it.")


def run(out: OutputWrapper, options: dict[str, Any]) -> None:
    try:
        done = adjust(**{name: options[name] for name in NAMED})
    except (TypeError, ValueError) as error:
        raise CommandError(str(error)) from error
    for one in done:
        unit = Unit(one.unit)
        change = "nothing to take off"
        if one.amount:
            change = f"{'+' if one.amount > 0 else ''}{_said(one.amount, unit)}"
        used, left = (_said(n, unit) for n in (one.used, one.available))
        name = f"{one.scope} {one.limit.adjective} {one.unit}"
        out.write(f"{name}: {change}; now {used} used, {left} available.")


def _said(amount: int, unit: Unit) -> str:
    return money.format_usd(amount) if unit is Unit.COST else f"{amount:,}"
