"""What a finished call is charged: its own usage, that of other models, and the provider's word."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from typing import Final

from token_allowance import entries, policy
from token_allowance.limits import Amounts
from token_allowance.money import MAX_MICROS
from token_allowance.plans import Attempt, amounts, find_price
from token_allowance.policy import PriceRows
from token_allowance.pricing import Cost, ModelPrice, cost, unpriced
from token_allowance.stores.base import Row
from token_allowance.usage import Usage

#: Providers whose own figure is what they charge. Everyone else's is only compared with ours.
REPORTS_COST: Final = frozenset({"openrouter"})
TOLERATED_PERCENT: Final = 1
_SCALE: Final = Context(prec=50)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What one answer said of itself. ``others``: what other models did for it, by their names."""

    usage: Usage
    flags: tuple[str, ...] = ()
    service_tier: str = ""
    raw: Mapping[str, object] = field(default_factory=dict)
    others: tuple[tuple[str, Usage], ...] = ()
    reported_dollars: Decimal | None = None


def settled(
    account: Account, attempt: Attempt, prices: PriceRows | None, at: dt.datetime
) -> tuple[Amounts, Row]:
    """What the budgets are charged, and the final columns of the ledger row.

    ``at`` is when the call was reserved. Raises StoreUnavailable if the price of another model
    that took part cannot be looked up now.
    """
    usage = account.usage
    tier = account.service_tier or attempt.service_tier
    price = find_price(attempt, prices, usage, tier, at)
    flags = set(account.flags)
    priced = _priced(usage, price, flags)
    for model, used in account.others:
        theirs = find_price(
            replace(attempt, model=model),
            policy.current().prices(attempt.provider, model),
            used,
            tier,
            at,
        )
        part = _priced(used, theirs or price, flags)
        priced = part if priced is None or part is None else priced + part
        usage += used
    if usage.cache_read_tokens + usage.cache_write_tokens > usage.input_tokens:
        flags.add("anomaly")
    if priced and priced.micros > MAX_MICROS:
        flags.add("anomaly")
    priced = _billed(priced, account.reported_dollars, attempt.provider, flags)
    actual = amounts(usage, priced)
    final = entries.ended("settled", flags, usage, price, actual, priced)
    return actual, final | {"raw_usage": dict(account.raw) or None}


def _priced(usage: Usage, price: ModelPrice | None, flags: set[str]) -> Cost | None:
    if price is None or price.source == "fallback":
        flags.add("unpriced")
    if price is None:
        return None
    if unpriced(usage, price):
        flags.add("fee_unknown")
    return cost(usage, price)


def _billed(
    ours: Cost | None, dollars: Decimal | None, provider: str, flags: set[str]
) -> Cost | None:
    """Our figure, or the provider's own where it is declared to report one (case C17).

    A reported zero is believed only of a model that costs nothing by our prices too.
    """
    if dollars is None:
        return ours
    micros = _SCALE.scaleb(dollars, 6)
    if ours is not None:
        difference = 100 * abs(ours.exact - micros)
        if difference > TOLERATED_PERCENT * max(ours.exact, micros):
            flags.add("cost_differs")
    if provider not in REPORTS_COST or (not micros and (ours is None or ours.exact)):
        return ours
    flags.add("cost_reported")
    flags.discard("unpriced")
    return Cost({"reported": micros} if micros else {})


def served_model(row: Row) -> str:
    """The model that answered such a call, by a name that its price is found under."""
    if "degraded" not in row["flags"]:
        return str(row["requested_model"])
    return str(row["price"]["model"] if row["price"] else row["model"])


def stored_prices(row: Row, provider: str) -> PriceRows | None:
    """The prices of a call that was reserved earlier, by any process: those of the date, source and
    tier that its ledger row keeps, whatever was added since (case C25)."""
    if not row["price"]:
        return None
    kept = ModelPrice.from_dict(row["price"])
    if kept.source == "fallback":
        return PriceRows(row["model"], (kept,))
    known = policy.current().prices(provider, served_model(row))
    kin = tuple(
        price
        for price in (*known.own, *known.imported)
        if (price.source, price.service_tier, price.effective_from)
        == (kept.source, kept.service_tier, kept.effective_from)
    )
    return PriceRows(row["model"], kin or (kept,))
