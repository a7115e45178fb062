"""How a call's cost came about, written out."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from token_allowance import money
from token_allowance.admin.price_form import per_million
from token_allowance.models import Reservation
from token_allowance.pricing import Cost, ModelPrice, cost, parts
from token_allowance.usage import Usage

KINDS = {
    "input": "input",
    "output": "output",
    "cache_read": "read from cache",
    "cache_write_5m": "written to cache for 5 minutes",
    "cache_write_1h": "written to cache for 1 hour",
    "input_audio": "input of sound",
    "output_audio": "output of sound",
    "cache_read_audio": "sound read from cache",
    "input_image": "input of pictures",
    "output_image": "output of pictures",
    "web_search": "web searches",
    "file_search": "file searches",
    "request": "call",
    "image": "pictures",
    "audio": "seconds of sound",
    "character": "characters",
    "page": "pages",
}
UNITS = {1_000_000: "M", 3600: "hour", 1000: "thousand", 1: "each"}


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
        (
            f"{part.number:,}",
            KINDS[part.kind],
            f"{per_million(part.rate)}/{UNITS[part.per]}",
            dollars(part.micros),
        )
        for part in parts(usage, price)
        if part.rate
    ]
    sentence = " + ".join(f"{number} {kind} × {rate}" for number, kind, rate, _ in terms)
    lines = format_html_join(
        "",
        '<tr><th scope="row">{1}</th><td>{0}</td><td>{2}</td><td>{3}</td></tr>',
        terms,
    )
    table = format_html(
        '<table class="sum"><tr><th scope="col">kind</th><th scope="col">number</th>'
        '<th scope="col">price</th><th scope="col">cost</th></tr>{}</table>',
        lines,
    )
    return format_html("<p>{} = {}</p>{}", sentence or "nothing", result(row, total), table)


def result(row: Reservation, total: Cost) -> str:
    rounded = "" if total.exact == total.micros else ", rounded up"
    text = f"{money.format_usd(total.micros)}{rounded}"
    if row.cost_micros is not None and row.cost_micros != total.micros:
        text += f"; charged was {money.format_usd(row.cost_micros)} (see the flags)"
    return text


def dollars(micros: Decimal) -> str:
    """Exact dollars of an exact number of micro-dollars."""
    return per_million(micros.scaleb(-6)) or ""


def difference(row: Reservation) -> Any:
    """Settled minus reserved in micro-dollars, None while one of them is unknown."""
    if row.cost_micros is None or row.reserved_micros is None:
        return None
    return row.cost_micros - row.reserved_micros
