"""Reading ``genai-prices`` (optional, offline) into price rows. Nothing is written here."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Any

from token_allowance import pricing
from token_allowance.limits import IDENTIFIER_LENGTH
from token_allowance.pricing import ModelPrice

if TYPE_CHECKING:
    from genai_prices import types as genai

SOURCE = "genai-prices"
INSTALL = 'Bundled prices need the package genai-prices: pip install "token-allowance[prices]"'
# Dollars per million tokens. The dearest real price is 600; a slipped decimal point is above this.
HIGHEST = Decimal(10_000)
PLACES = Decimal("0.00000001")  # of a Price column; upstream has floats such as 0.13999999999999999
NOTHING = Decimal(0)
FIRST = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# Our column for each of their kinds of token; later ones win.
KINDS = {
    "input_mtok": "input_mtok",
    "output_mtok": "output_mtok",
    "cache_read_mtok": "cache_read_mtok",
    "cache_write_mtok": "cache_write_5m_mtok",
    "cache_write_5m_mtok": "cache_write_5m_mtok",
    "cache_write_1h_mtok": "cache_write_1h_mtok",
}
DEFAULT_TIER = {"service_tier": "default"}
OTHER_TIERS = (("processing", "batch"), ("speed", "fast"))


class NotInstalled(Exception):
    """The optional package with the bundled prices is absent; the text says how to get it."""


@dataclass(slots=True)
class Bundle:
    """The price rows of a bundle, what was refused and why, and what our rows cannot express."""

    prices: list[ModelPrice] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def load() -> list[genai.Provider]:
    """Every provider in the installed package; takes about half a second. Raises NotInstalled."""
    try:
        from genai_prices.data import providers
    except ImportError as error:
        raise NotInstalled(INSTALL) from error
    return list(providers)


def read(providers: Iterable[genai.Provider], only: Collection[str] = ()) -> Bundle:
    """The rows of these providers, or of those whose ids are named.

    Each model is stored under every name that is certain: its id and the names it equals. A price
    that is negative or absurd refuses the whole model (case C17).
    """
    bundle = Bundle()
    for provider in providers:
        if only and provider.id not in only:
            continue
        names: dict[int, list[str]] = defaultdict(list)
        for name, model in _owners(provider).items():
            names[id(model)].append(name)
        for model in provider.models:
            try:
                rows = list(_rows(provider.id, model, bundle.skipped))
            except (ValueError, TypeError, ArithmeticError) as error:
                bundle.rejected.append(f"{provider.id} {model.id}: {error}")
                continue
            bundle.prices += [replace(row, model=name) for name in names[id(model)] for row in rows]
    return bundle


def _owners(provider: genai.Provider) -> dict[str, genai.ModelInfo]:
    """The model of each exact name. Prefixes and patterns are not guessed at (case C22); they only
    confirm an id without its date or ``-latest``."""
    owners: dict[str, genai.ModelInfo] = {}
    certain = [(name, m) for m in provider.models for name in (m.id, *_equals(m.match))]
    shorter = [(name, m) for m in provider.models for name in pricing.name_candidates(m.id)]
    for name, model in [*certain, *shorter]:
        if len(name) <= IDENTIFIER_LENGTH and name not in owners and model.is_match(name):
            owners[name] = model
    return owners


def _equals(clause: Any) -> Iterator[str]:
    if hasattr(clause, "equals"):
        yield clause.equals
    for inner in getattr(clause, "or_", ()):
        yield from _equals(inner)


def _rows(provider: str, model: genai.ModelInfo, skipped: Counter[str]) -> Iterator[ModelPrice]:
    model = _at_its_dearest_hour(model, skipped)
    if not model.prices:
        skipped["models without a price"] += 1
        return
    for tier, context in _tiers(model, skipped).items():
        before: list[ModelPrice] = []
        for date in _dates(model, context):
            moment = date or FIRST
            if context and not _begun(model, context, moment):
                continue
            price = model.get_prices(moment, context)
            if not _by_tokens(price):
                skipped["prices not by input and output tokens"] += 1
                continue
            rows = list(_thresholds(provider, model.id, tier, price))
            if rows != before:
                yield from (replace(row, effective_from=date) for row in rows)
            before = rows


def _at_its_dearest_hour(model: genai.ModelInfo, skipped: Counter[str]) -> genai.ModelInfo:
    """Our rows know no hours of the day, and a budget must never undercount: the dearest counts."""
    prices, variants = model.prices, model.price_variants or []
    if isinstance(prices, list) and any(_hourly(price) for price in prices):
        prices = max((c.prices for c in prices), key=_bases)
    lasting = [variant for variant in variants if not _hourly(variant)]
    skipped["tiers for hours of the day"] += len(variants) - len(lasting)
    return replace(model, prices=prices, price_variants=lasting)


def _bases(price: genai.ModelPrice) -> list[Decimal]:
    rates: tuple[Any, ...] = (price.input_mtok, price.output_mtok)
    return [getattr(rate, "base", rate) or NOTHING for rate in rates]


def _hourly(conditional: Any) -> bool:
    return hasattr(conditional.constraint, "start_time")


def _tiers(model: genai.ModelInfo, skipped: Counter[str]) -> dict[str, dict[str, str]]:
    """For each of our service tiers the context that selects it; the default needs none."""
    tiers: dict[str, dict[str, str]] = {"": {}}
    for variant in model.price_variants or ():
        [(key, value), *more] = variant.when.items()
        if variant.when == DEFAULT_TIER:
            continue
        known = key == "service_tier" or (key, value) in OTHER_TIERS
        if known and not more:
            tiers[value] = {key: value}
        else:
            skipped[f"prices chosen by {' and '.join(variant.when)}"] += 1
    return tiers


def _begun(model: genai.ModelInfo, context: dict[str, str], moment: dt.datetime) -> bool:
    """Is there a price of its own for this context yet? Before that the default price holds."""
    own = [variant for variant in model.price_variants or () if variant.when == context]
    return any(v.constraint is None or v.constraint.active(moment) for v in own)


def _dates(model: genai.ModelInfo, context: dict[str, str]) -> list[dt.datetime | None]:
    """When the price may change, always first. A date begins at midnight UTC."""
    conditional: list[Any] = list(model.prices) if isinstance(model.prices, list) else []
    conditional += [v for v in model.price_variants or () if v.when == context]
    days = {c.constraint.start_date for c in conditional if c.constraint is not None}
    return [None, *(dt.datetime.combine(day, dt.time(), dt.UTC) for day in sorted(days))]


def _by_tokens(price: genai.ModelPrice) -> bool:
    """Can tokens alone price each call? Unknown is not free: a fee for each request cannot be said
    in tokens, nor can an output of images only. An embedding has no output at all."""
    given = {name for name, value in price.__dict__.items() if value is not None}
    other_output = any(name.startswith("output_") for name in given)
    priced = "input_mtok" in given and ("output_mtok" in given or not other_output)
    return priced and "requests_kcount" not in given


def _thresholds(
    provider: str, model: str, tier: str, price: genai.ModelPrice
) -> Iterator[ModelPrice]:
    """One row per threshold. Upstream a tier is for calls with MORE input than its start."""
    given = {theirs: getattr(price, theirs, None) for theirs in KINDS}
    starts = {tier.start for value in given.values() for tier in getattr(value, "tiers", ())}
    for least in sorted({0, *(start + 1 for start in starts)}):
        rates: dict[str, Any] = {
            KINDS[theirs]: _rate(theirs, value, least)
            for theirs, value in given.items()
            if value is not None
        }
        row = ModelPrice(
            provider=provider,
            model=model,
            service_tier=tier,
            min_input_tokens=least,
            source=SOURCE,
            input_mtok=rates.pop("input_mtok"),
            output_mtok=rates.pop("output_mtok", NOTHING),
        )
        yield replace(row, **rates)


def _rate(kind: str, value: Any, least: int) -> Decimal:
    rate = getattr(value, "base", value)
    for tier in getattr(value, "tiers", ()):
        if tier.start < least:
            rate = tier.price
    if not isinstance(rate, Decimal) or not rate.is_finite() or not 0 <= rate <= HIGHEST:
        raise ValueError(f"{kind} of {rate} dollars per million tokens is refused")
    return rate.quantize(PLACES, ROUND_HALF_UP)
