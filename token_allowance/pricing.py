"""What a call costs: prices, the one that applies, and the sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from decimal import ROUND_UP, Context, Decimal, Inexact, InvalidOperation
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from token_allowance.money import ceil_micros
from token_allowance.usage import NAMES, UNITS, Usage

# Wide enough for any count times any price that ModelPrice admits; it fails rather than rounds.
_EXACT: Final = Context(prec=200, traps=[Inexact, InvalidOperation])
_ROUND_UP: Final = Context(prec=200, rounding=ROUND_UP)
_FINEST: Final = Decimal("1e-10")  # of a micro-dollar: what the ledger keeps
_ZERO: Final = Decimal(0)
_HIGHEST_PRICE: Final = Decimal(10**9)
_MOST_DECIMALS: Final = 30
_ALWAYS: Final = datetime.min.replace(tzinfo=UTC)

MILLION: Final = 1_000_000
HOUR_SECONDS: Final = 3600
#: How many of its unit each rate is the price of, by the end of its name.
PER: Final[Mapping[str, int]] = MappingProxyType(
    {"mtok": MILLION, "million": MILLION, "thousand": 1000, "each": 1, "hour": HOUR_SECONDS}
)
RATES: Final = (
    "input_mtok", "output_mtok", "cache_read_mtok", "cache_write_5m_mtok", "cache_write_1h_mtok",
    "input_audio_mtok", "output_audio_mtok", "cache_read_audio_mtok", "input_image_mtok",
    "output_image_mtok", "web_search_thousand", "file_search_thousand", "request_thousand",
    "image_each", "audio_hour", "character_million", "page_thousand",
)  # fmt: skip
#: Most calls use nothing but text: one look at all the rest spares the sums of each.
_units: Final = attrgetter(*UNITS)
_subsets: Final = attrgetter(
    *(n for n in NAMES if n not in (*UNITS, "input_tokens", "output_tokens", "reasoning_tokens"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrice:
    """One dated price row of one model, in dollars: for a million tokens (``_mtok``), or fees.

    Tokens times a price for a million are micro-dollars, exactly. A kind of token whose price is
    None has that of its parent: read and 5-minute write the input price, 1-hour write the 5-minute
    one, sounds and pictures that of text. A fee of None is unknown: see ``unpriced``.
    ``effective_from`` None means always; ``min_input_tokens`` is the smallest total input this row
    is for (case C09). Raises TypeError for a price that is no Decimal, ValueError for one that is
    not finite, negative, above a billion or finer than 30 decimals, and for a naive date.
    """

    provider: str
    model: str
    input_mtok: Decimal
    output_mtok: Decimal
    cache_read_mtok: Decimal | None = None
    cache_write_5m_mtok: Decimal | None = None
    cache_write_1h_mtok: Decimal | None = None
    input_audio_mtok: Decimal | None = None
    output_audio_mtok: Decimal | None = None
    cache_read_audio_mtok: Decimal | None = None
    input_image_mtok: Decimal | None = None
    output_image_mtok: Decimal | None = None
    web_search_thousand: Decimal | None = None
    file_search_thousand: Decimal | None = None
    request_thousand: Decimal | None = None  # every call that used anything
    image_each: Decimal | None = None  # only where no output tokens are charged (case C13)
    audio_hour: Decimal | None = None
    character_million: Decimal | None = None
    page_thousand: Decimal | None = None
    min_input_tokens: int = 0
    service_tier: str = ""
    effective_from: datetime | None = None
    source: str = ""
    id: int | None = None
    _written: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in RATES:
            rate = getattr(self, name)
            if rate is not None or name in RATES[:2]:
                _check_price(name, rate)
        if self.min_input_tokens < 0:
            raise ValueError(f"min_input_tokens must not be negative, got {self.min_input_tokens}")
        if self.effective_from is not None and self.effective_from.utcoffset() is None:
            raise ValueError("effective_from needs a time zone")
        values = ((f.name, getattr(self, f.name)) for f in fields(self) if f.init)
        written = {name: _plain(value) for name, value in values if value is not None}
        object.__setattr__(self, "_written", written)

    def as_dict(self) -> dict[str, Any]:
        """What is not None, for JSON: prices as text, the date in ISO 8601."""
        return self._written.copy()

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Self:
        """The price that ``as_dict`` wrote."""
        values = dict(row)
        for name in RATES:
            if values.get(name) is not None:
                values[name] = Decimal(values[name])
        if values.get("effective_from") is not None:
            values["effective_from"] = datetime.fromisoformat(values["effective_from"])
        return cls(**values)


def _check_price(name: str, price: object) -> None:
    if not isinstance(price, Decimal):
        raise TypeError(f"{name} must be a Decimal, not {type(price).__name__}")
    if not price.is_finite() or not 0 <= price <= _HIGHEST_PRICE:
        raise ValueError(f"{name} must be 0 to {_HIGHEST_PRICE} dollars, got {price}")
    exponent = price.as_tuple().exponent
    if isinstance(exponent, int) and exponent < -_MOST_DECIMALS:
        raise ValueError(f"{name} must have at most {_MOST_DECIMALS} decimals, got {price}")


def _plain(value: object) -> object:
    if isinstance(value, Decimal):
        return str(value)
    return value.isoformat() if isinstance(value, datetime) else value


class Part(NamedTuple):
    """One part of a cost: ``number`` of a kind at ``rate`` dollars for ``per`` of them."""

    kind: str
    number: int
    rate: Decimal
    per: int

    @property
    def micros(self) -> Decimal:
        """Exact micro-dollars; a rate for an hour that seconds do not divide is rounded up."""
        if self.per == HOUR_SECONDS:
            paid = _EXACT.multiply(self.number * MILLION, self.rate)
            return _ROUND_UP.quantize(_ROUND_UP.divide(paid, self.per), _FINEST).normalize(_EXACT)
        return _EXACT.multiply(self.number * (MILLION // self.per), self.rate)


@dataclass(frozen=True, slots=True)
class Cost:
    """Exact micro-dollars of one call by kind; kinds that cost nothing are left out (case C26)."""

    parts: dict[str, Decimal]
    exact: Decimal = field(init=False, compare=False)  # the sum of the parts, unrounded
    micros: int = field(init=False, compare=False)  # what is charged: the sum, rounded up once

    def __post_init__(self) -> None:
        total = _ZERO
        for part in self.parts.values():
            total = _EXACT.add(total, part)
        object.__setattr__(self, "exact", total)
        object.__setattr__(self, "micros", ceil_micros(total))

    def __add__(self, other: Cost) -> Cost:
        parts = dict(self.parts)
        for kind, part in other.parts.items():
            parts[kind] = _EXACT.add(parts.get(kind, _ZERO), part)
        return Cost(parts)


def cost(usage: Usage, price: ModelPrice) -> Cost:
    """What ``usage`` costs at ``price``: the one place where money is computed (case C26)."""
    return Cost({part.kind: part.micros for part in parts(usage, price) if part.rate})


def parts(usage: Usage, price: ModelPrice) -> list[Part]:
    """The disjoint parts of a usage, each with its rate; every token is in exactly one of them.

    The most specific kind that has a price wins. Subsets that exceed their whole are cut down to
    it, reads first, so that no part is ever negative (case C19).
    """
    tokens = [
        Part(kind, count, rate, MILLION) for kind, count, rate in _tokens(usage, price) if count
    ]
    paid_output = any(p.rate for p in tokens if p.kind.startswith("output"))
    return tokens + _fees(usage, price, paid_output)


def _fees(usage: Usage, price: ModelPrice, paid_output: bool) -> list[Part]:
    if price.request_thousand is None and not any(_units(usage)):
        return []
    counted = {
        "web_search_thousand": usage.web_searches,
        "file_search_thousand": usage.file_searches,
        "request_thousand": int(bool(usage)),
        "image_each": 0 if paid_output else usage.images,
        "audio_hour": usage.audio_seconds,
        "character_million": usage.characters,
        "page_thousand": usage.pages,
    }
    fees = []
    for name, count in counted.items():
        if count and (rate := getattr(price, name)) is not None:
            kind, _, unit = name.rpartition("_")
            fees.append(Part(kind, count, rate, PER[unit]))
    return fees


def unpriced(usage: Usage, price: ModelPrice) -> list[str]:
    """The units in ``usage`` for which neither a fee nor a price of tokens is known.

    A search is always a fee beside the tokens; pictures, sounds, letters and pages are a fee of
    their own only where tokens do not pay for them already.
    """
    missing = [
        name
        for name, fee in (("web_searches", "web_search_thousand"),
                          ("file_searches", "file_search_thousand"))
        if getattr(usage, name) and getattr(price, fee) is None
    ]  # fmt: skip
    if not any(_units(usage)) or any(part.rate for part in parts(usage, price)):
        return missing
    for name, fee in (("images", "image_each"), ("audio_seconds", "audio_hour"),
                      ("characters", "character_million"), ("pages", "page_thousand")):  # fmt: skip
        if getattr(usage, name) and getattr(price, fee) is None:
            missing.append(name)
    return missing


def _tokens(usage: Usage, price: ModelPrice) -> tuple[tuple[str, int, Decimal], ...]:
    if not any(_subsets(usage)):
        return (
            ("input", usage.input_tokens, price.input_mtok),
            ("output", usage.output_tokens, price.output_mtok),
        )
    read = min(usage.cache_read_tokens, usage.input_tokens)
    heard = min(usage.cache_read_audio_tokens, read)
    written = min(usage.cache_write_tokens, usage.input_tokens - read)
    written_1h = min(usage.cache_write_1h_tokens, written)
    fresh = usage.input_tokens - read - written
    audio_in = min(max(usage.input_audio_tokens - heard, 0), fresh)
    image_in = min(usage.input_image_tokens, fresh - audio_in)
    audio_out = min(usage.output_audio_tokens, usage.output_tokens)
    image_out = min(usage.output_image_tokens, usage.output_tokens - audio_out)
    text_in, text_out = price.input_mtok, price.output_mtok
    write_5m = _else(price.cache_write_5m_mtok, text_in)
    return (
        ("input", fresh - audio_in - image_in, text_in),
        ("output", usage.output_tokens - audio_out - image_out, text_out),
        ("cache_read", read - heard, _else(price.cache_read_mtok, text_in)),
        ("cache_write_5m", written - written_1h, write_5m),
        ("cache_write_1h", written_1h, _else(price.cache_write_1h_mtok, write_5m)),
        ("input_audio", audio_in, _else(price.input_audio_mtok, text_in)),
        ("output_audio", audio_out, _else(price.output_audio_mtok, text_out)),
        ("cache_read_audio", heard, _else(price.cache_read_audio_mtok, _cached_audio(price))),
        ("input_image", image_in, _else(price.input_image_mtok, text_in)),
        ("output_image", image_out, _else(price.output_image_mtok, text_out)),
    )


def _cached_audio(price: ModelPrice) -> Decimal:
    """Cached sound has two parents; the dearer one counts, so that no budget undercounts."""
    parents = (price.cache_read_mtok, price.input_audio_mtok)
    return max((rate for rate in parents if rate is not None), default=price.input_mtok)


def _else(rate: Decimal | None, otherwise: Decimal) -> Decimal:
    return otherwise if rate is None else rate


def choose(
    prices: Iterable[ModelPrice], *, at: datetime, input_tokens: int, service_tier: str = ""
) -> ModelPrice | None:
    """The price of a call, among the rows of one model; None if there is none.

    ``at`` is when the call was reserved (case C25), ``input_tokens`` its total input (case C10).
    Within a service tier the newest date in force wins with all its rows, then the highest
    threshold that the input reaches: it prices the whole call (case C09). A service tier without
    a row of its own has the default price. Of equal rows the later one wins.
    """
    fitting = [
        price
        for price in prices
        if price.min_input_tokens <= input_tokens
        and (price.effective_from is None or price.effective_from <= at)
    ]
    fitting.reverse()
    for tier in (service_tier, ""):
        rows = [price for price in fitting if price.service_tier == tier]
        if rows:
            return max(rows, key=lambda p: (p.effective_from or _ALWAYS, p.min_input_tokens))
    return None
