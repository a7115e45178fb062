"""What a call costs: prices, the one that applies, and the sum."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from types import MappingProxyType
from typing import Any, Final, Self

from token_allowance.money import ceil_micros
from token_allowance.usage import Usage

# Wide enough for any count times any price that ModelPrice admits; it fails rather than rounds.
_EXACT: Final = Context(prec=200, traps=[Inexact, InvalidOperation])
_ZERO: Final = Decimal(0)
_HIGHEST_PRICE: Final = Decimal(10**9)
_MOST_DECIMALS: Final = 30
_ALWAYS: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrice:
    """One dated price row of one model, in dollars per million tokens.

    Tokens times such a price are micro-dollars, exactly. A cache price of None means: read and
    5-minute write at the input price, 1-hour write at the 5-minute one. ``effective_from`` None
    means always; ``min_input_tokens`` is the smallest total input this row is for (case C09).
    Raises TypeError for a price that is no Decimal, ValueError for one that is not finite,
    negative, above a billion or finer than 30 decimals, and for a naive date.
    """

    provider: str
    model: str
    input_mtok: Decimal
    output_mtok: Decimal
    cache_read_mtok: Decimal | None = None
    cache_write_5m_mtok: Decimal | None = None
    cache_write_1h_mtok: Decimal | None = None
    min_input_tokens: int = 0
    service_tier: str = ""
    effective_from: datetime | None = None
    source: str = ""
    id: int | None = None

    def __post_init__(self) -> None:
        _check_price("input_mtok", self.input_mtok)
        _check_price("output_mtok", self.output_mtok)
        for name in ("cache_read_mtok", "cache_write_5m_mtok", "cache_write_1h_mtok"):
            if getattr(self, name) is not None:
                _check_price(name, getattr(self, name))
        if self.min_input_tokens < 0:
            raise ValueError(f"min_input_tokens must not be negative, got {self.min_input_tokens}")
        if self.effective_from is not None and self.effective_from.utcoffset() is None:
            raise ValueError("effective_from needs a time zone")

    def as_dict(self) -> dict[str, Any]:
        """All fields for JSON: prices as text, the date in ISO 8601."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Self:
        """The price that ``as_dict`` wrote."""
        values = dict(row)
        for name, value in row.items():
            if name.endswith("_mtok") and value is not None:
                values[name] = Decimal(value)
        if values.get("effective_from") is not None:
            values["effective_from"] = datetime.fromisoformat(values["effective_from"])
        return cls(**values)


def _check_price(name: str, price: object) -> None:
    if not isinstance(price, Decimal):
        raise TypeError(f"{name} must be a Decimal, not {type(price).__name__}")
    if not price.is_finite() or not 0 <= price <= _HIGHEST_PRICE:
        raise ValueError(f"{name} must be 0 to {_HIGHEST_PRICE} dollars per million, got {price}")
    exponent = price.as_tuple().exponent
    if isinstance(exponent, int) and exponent < -_MOST_DECIMALS:
        raise ValueError(f"{name} must have at most {_MOST_DECIMALS} decimals, got {price}")


def _plain(value: object) -> object:
    if isinstance(value, Decimal):
        return str(value)
    return value.isoformat() if isinstance(value, datetime) else value


@dataclass(frozen=True, slots=True)
class Cost:
    """Exact micro-dollars of one call by kind; kinds that cost nothing are left out (case C26)."""

    parts: dict[str, Decimal]

    @property
    def exact(self) -> Decimal:
        """The sum of the parts, unrounded."""
        total = _ZERO
        for part in self.parts.values():
            total = _EXACT.add(total, part)
        return total

    @property
    def micros(self) -> int:
        """What is charged: the sum, rounded up once."""
        return ceil_micros(self.exact)


def cost(usage: Usage, price: ModelPrice) -> Cost:
    """What ``usage`` costs at ``price``: the one place where money is computed (case C26).

    Every token is charged once. Cached counts above the input are cut down to it, reads first,
    so that no part is ever negative (case C19).
    """
    unread = usage.input_tokens - min(usage.cache_read_tokens, usage.input_tokens)
    written = min(usage.cache_write_tokens, unread)
    written_1h = min(usage.cache_write_1h_tokens, written)
    write_5m = price.input_mtok if price.cache_write_5m_mtok is None else price.cache_write_5m_mtok
    charges = (
        ("input", unread - written, price.input_mtok),
        ("output", usage.output_tokens, price.output_mtok),
        ("cache_read", usage.input_tokens - unread, _else(price.cache_read_mtok, price.input_mtok)),
        ("cache_write_5m", written - written_1h, write_5m),
        ("cache_write_1h", written_1h, _else(price.cache_write_1h_mtok, write_5m)),
    )
    return Cost(
        {k: _EXACT.multiply(tokens, rate) for k, tokens, rate in charges if tokens and rate}
    )


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


_SUFFIX: Final = re.compile(
    r"""(?<=.)(?:
        -latest
        | -(?:19|20)[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])
        | [-@](?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])
    )\Z""",
    re.VERBOSE,
)
_FINE_TUNED: Final = "ft:"
_NO_ALIASES: Final[Mapping[str, str]] = MappingProxyType({})


def name_candidates(model: str, aliases: Mapping[str, str] = _NO_ALIASES) -> list[str]:
    """The names under which the price of ``model`` may be found, best first.

    The name itself, its declared alias, then the name without a trailing date or ``-latest``
    (case C22). ``ft:base:org:name:id`` is also looked for as ``ft:base``, never as its base (case
    C24). Nothing is guessed from a prefix, and case matters (case C20).
    """
    names: dict[str, None] = {}
    _collect(model, aliases, names)
    return list(names)


def _collect(name: str, aliases: Mapping[str, str], names: dict[str, None]) -> None:
    if name in names:
        return
    names[name] = None
    if name in aliases:
        _collect(aliases[name], aliases, names)
    for shorter in _shortened(name):
        _collect(shorter, aliases, names)


def _shortened(name: str) -> Iterator[str]:
    if suffix := _SUFFIX.search(name):
        yield name[: suffix.start()]
    if name.startswith(_FINE_TUNED):
        base, separator, _ = name.removeprefix(_FINE_TUNED).partition(":")
        if base and separator:
            yield _FINE_TUNED + base
