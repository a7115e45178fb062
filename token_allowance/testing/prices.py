"""A price for a test: no call of a model without one is let through where a cost limit applies."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from token_allowance.models import Price


def price(
    model: str,
    *,
    input: Decimal | int | str,
    output: Decimal | int | str,
    provider: str = "openai",
) -> Price:
    """Write a price in dollars per million tokens (no floats), in force at any date."""
    from token_allowance.models import Price  # not before Django's apps are ready

    if isinstance(input, float) or isinstance(output, float):
        raise TypeError('a price is a Decimal, an int or text such as "0.25", not a float')
    return Price.objects.create(
        provider=provider, model=model, input_mtok=Decimal(input), output_mtok=Decimal(output)
    )
