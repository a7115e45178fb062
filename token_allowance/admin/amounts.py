"""Amounts as people write them: dollars for cost, whole numbers for the rest."""

from __future__ import annotations

import re

from token_allowance import money
from token_allowance.limits import Unit

WHOLE = re.compile(r"[0-9]+")


def parsed(text: str, unit: Unit) -> int:
    """The amount in its unit, micro-dollars for cost. ValueError says what is wrong with it."""
    text = text.strip().removeprefix("$").strip() if unit is Unit.COST else text.strip()
    if unit is Unit.COST:
        return money.to_micros(text)
    if not WHOLE.fullmatch(text) or len(text) > 30:
        raise ValueError(f"write a whole number of {unit}, such as 50000")
    if int(text) > money.MAX_MICROS:
        raise ValueError(f"at most {money.MAX_MICROS} {unit} are possible")
    return int(text)


def written(amount: int, unit: str) -> str:
    """The text that ``parsed`` reads back."""
    if unit != Unit.COST:
        return str(amount)
    return money.format_usd(amount).removeprefix("$").replace(",", "")


def text(amount: int, unit: str) -> str:
    """The amount with its unit: "$0.50", "50,000 tokens"."""
    return money.format_usd(amount) if unit == Unit.COST else f"{amount:,} {unit}"
