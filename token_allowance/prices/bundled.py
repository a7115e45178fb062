"""Reading ``genai-prices`` (optional, offline) into price rows. Nothing is written here."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Any

from token_allowance.limits import IDENTIFIER_LENGTH
from token_allowance.names import name_candidates
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
# Our column for each of their kinds of token and unit; later ones win. A page costs what one with
# marks costs: no response tells them apart, and a budget must never undercount.
KINDS = {
    "input_mtok": "input_mtok",
    "output_mtok": "output_mtok",
    "cache_read_mtok": "cache_read_mtok",
    "cache_write_mtok": "cache_write_5m_mtok",
    "cache_write_5m_mtok": "cache_write_5m_mtok",
    "cache_write_1h_mtok": "cache_write_1h_mtok",
    "input_audio_mtok": "input_audio_mtok",
    "output_audio_mtok": "output_audio_mtok",
    "cache_audio_read_mtok": "cache_read_audio_mtok",
    "input_image_mtok": "input_image_mtok",
    "output_image_mtok": "output_image_mtok",
    "web_searches_kcount": "web_search_thousand",
    "storage_searches_kcount": "file_search_thousand",
    "requests_kcount": "request_thousand",
    "input_audio_hours": "audio_hour",
    "audio_hours": "audio_hour",
    "input_mchars": "character_million",
    "input_document_kpages": "page_thousand",
    "input_annotated_document_kpages": "page_thousand",
}
BY_UNIT = frozenset(("audio_hour", "character_million", "page_thousand"))
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
    shorter = [(name, m) for m in provider.models for name in name_candidates(m.id)]
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
            given = {name for name, value in price.__dict__.items() if value is not None}
            if not given or not _can_be_said(given):
                left_out = "prices by units that rows do not have"
                skipped[left_out if given else "models without a price"] += 1
                continue
            for name in given - KINDS.keys():
                skipped[f"prices of {name}, which count as their parent"] += 1
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


def _can_be_said(given: set[str]) -> bool:
    """Can our columns price each call? Unknown is not free: without a price of input tokens there
    must be a fee, and what is no token must have a column. An embedding has no output at all."""
    units = {name for name in given if not name.endswith("_mtok")}
    by_unit = bool(BY_UNIT & {KINDS.get(name) for name in given})
    return units <= KINDS.keys() and ("input_mtok" in given or (by_unit and units == given))


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
            input_mtok=rates.pop("input_mtok", NOTHING),
            output_mtok=rates.pop("output_mtok", _dearest_output(rates)),
        )
        yield replace(row, **rates)


def _dearest_output(rates: dict[str, Any]) -> Decimal:
    """Where only sounds or pictures have a price as output, any other output has it too."""
    outputs = (rate for name, rate in rates.items() if name.startswith("output_"))
    return max(outputs, default=NOTHING)


def _rate(kind: str, value: Any, least: int) -> Decimal:
    rate = getattr(value, "base", value)
    for tier in getattr(value, "tiers", ()):
        if tier.start < least:
            rate = tier.price
    if not isinstance(rate, Decimal) or not rate.is_finite() or not 0 <= rate <= HIGHEST:
        raise ValueError(f"{kind} of {rate} dollars per million tokens is refused")
    return rate.quantize(PLACES, ROUND_HALF_UP)
