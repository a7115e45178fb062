"""How a call's cost came about, written out."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from token_allowance import money
from token_allowance.admin.price_form import per_million
from token_allowance.models import Reservation
from token_allowance.pricing import Cost, ModelPrice, cost
from token_allowance.usage import Usage

KINDS = {
    "input": "input",
    "output": "output",
    "cache_read": "read from cache",
    "cache_write_5m": "written to cache for 5 minutes",
    "cache_write_1h": "written to cache for 1 hour",
}


def written_out(row: Reservation) -> str | SafeString:
    """``1,204 input × $3.00/M + … = $0.008262, rounded up``, with one line for each kind below."""
    if not row.price or not row.usage:
        return "No price or no usage is kept with this call."
    try:
        price, usage = ModelPrice.from_dict(row.price), Usage.from_dict(row.usage)
    except (TypeError, ValueError, ArithmeticError):
        return "The price or usage kept with this call cannot be read."
    total = cost(usage, price)
    terms = [
        (f"{amount / rate:,.0f}", KINDS[kind], f"{per_million(rate)}", dollars(amount))
        for kind, amount in total.parts.items()
        if (rate := rates(price)[kind])
    ]
    sentence = " + ".join(f"{tokens} {kind} × {rate}/M" for tokens, kind, rate, _ in terms)
    lines = format_html_join(
        "",
        '<tr><th scope="row">{1}</th><td>{0}</td><td>{2}</td><td>{3}</td></tr>',
        terms,
    )
    table = format_html(
        '<table class="sum"><tr><th scope="col">kind</th><th scope="col">tokens</th>'
        '<th scope="col">per million</th><th scope="col">cost</th></tr>{}</table>',
        lines,
    )
    return format_html("<p>{} = {}</p>{}", sentence or "nothing", result(row, total), table)


def result(row: Reservation, total: Cost) -> str:
    rounded = "" if total.exact == total.micros else ", rounded up"
    text = f"{money.format_usd(total.micros)}{rounded}"
    if row.cost_micros is not None and row.cost_micros != total.micros:
        text += f"; charged was {money.format_usd(row.cost_micros)} (see the flags)"
    return text


def rates(price: ModelPrice) -> Mapping[str, Decimal]:
    """Dollars per million tokens for each kind of token, the empty ones filled in."""
    write_5m = price.input_mtok if price.cache_write_5m_mtok is None else price.cache_write_5m_mtok
    write_1h = write_5m if price.cache_write_1h_mtok is None else price.cache_write_1h_mtok
    read = price.input_mtok if price.cache_read_mtok is None else price.cache_read_mtok
    return {
        "input": price.input_mtok,
        "output": price.output_mtok,
        "cache_read": read,
        "cache_write_5m": write_5m,
        "cache_write_1h": write_1h,
    }


def dollars(micros: Decimal) -> str:
    """Exact dollars of an exact number of micro-dollars."""
    return per_million(micros.scaleb(-6)) or ""


def difference(row: Reservation) -> Any:
    """Settled minus reserved in micro-dollars, None while one of them is unknown."""
    if row.cost_micros is None or row.reserved_micros is None:
        return None
    return row.cost_micros - row.reserved_micros
