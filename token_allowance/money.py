"""Money as integers: micro-dollars inside, dollars at the edge."""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, Context, Decimal, InvalidOperation

MAX_MICROS = 2**53 - 1  # what JSON and Lua numbers still hold exactly (case C60)

_MICROS_PER_DOLLAR = 1_000_000
_MICRO = Decimal("0.000001")
_SHOWN_CHARACTERS = 40
# Not the caller's context: its precision and traps are none of our business.
_CONTEXT = Context(prec=50, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[InvalidOperation])
_MAX_DOLLARS = Decimal(MAX_MICROS).scaleb(-6, _CONTEXT)


def to_micros(dollars: Decimal | int | str) -> int:
    """Dollars as whole micro-dollars; a fraction of one is rounded up.

    Raises TypeError for floats and booleans, ValueError for what is no amount: text that is not a
    number, NaN, infinite, negative, above ``MAX_MICROS`` (cases C60 and C73).
    """
    amount = _parsed(dollars)
    if not amount.is_finite():
        raise ValueError(f"an amount must be a finite number of dollars, not {_shown(dollars)}")
    if amount < 0:
        raise ValueError(f"an amount must not be negative, got {_shown(dollars)}")
    if amount > _MAX_DOLLARS:
        raise ValueError(f"an amount must not exceed {_MAX_DOLLARS} dollars, got {_shown(dollars)}")
    return int(amount.quantize(_MICRO, ROUND_CEILING, _CONTEXT).scaleb(6, _CONTEXT))


def to_dollars(micros: int) -> Decimal:
    """Micro-dollars as exact dollars, with six decimals."""
    return Decimal(micros).scaleb(-6, _CONTEXT)


def ceil_micros(exact: Decimal) -> int:
    """An exact number of micro-dollars, rounded up to a whole one. ValueError if not finite."""
    if not exact.is_finite():
        raise ValueError(f"a cost must be finite, not {exact}")
    return int(exact.to_integral_value(ROUND_CEILING, _CONTEXT))


def format_usd(micros: int) -> str:
    """The exact amount for people: two decimals, or as many of six as it needs (case C90)."""
    sign = "-" if micros < 0 else ""
    dollars, fraction = divmod(abs(micros), _MICROS_PER_DOLLAR)
    decimals = f"{fraction:06d}".rstrip("0").ljust(2, "0")
    return f"{sign}${dollars:,}.{decimals}"


def _parsed(dollars: object) -> Decimal:
    if isinstance(dollars, Decimal):
        return dollars
    if isinstance(dollars, bool) or not isinstance(dollars, int | str):
        kind = type(dollars).__name__
        raise TypeError(f"an amount must be a Decimal, an integer or text, not {kind}")
    try:
        return Decimal(dollars)
    except InvalidOperation:
        raise ValueError(
            f"{_shown(dollars)} is not an amount of dollars; write it like 0.50 or 1250"
        ) from None


def _shown(dollars: Decimal | int | str) -> str:
    text = repr(dollars) if isinstance(dollars, str) else str(Decimal(dollars))
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
