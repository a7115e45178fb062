"""Amounts, moments and columns as messages write them."""

from __future__ import annotations

import datetime as dt

from token_allowance import conf, money
from token_allowance.limits import zone

UNITS = ("cost", "tokens", "calls")
FEW_CENTS_MICROS, CENT_MICROS = 100_000, 10_000


def amount_text(amount: int, unit: str) -> str:
    """``$31.84``, ``$0.000719``, ``1,200 tokens``: above a few cents, cents are enough (C90)."""
    if unit != "cost":
        return counted(amount, unit.removesuffix("s"))
    if abs(amount) >= FEW_CENTS_MICROS:
        amount -= amount % CENT_MICROS
    return money.format_usd(amount)


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def moment(iso: str | None) -> str:
    """``1 Dec 00:00 UTC`` in the zone of windows; nothing for None."""
    if not iso:
        return ""
    local = _local(iso)
    return f"{local.day} {local:%b %H:%M} {local.tzname()}"


def clock(iso: str) -> str:
    local = _local(iso)
    return f"{local:%Y-%m-%d %H:%M:%S} {local.tzname()}"


def until_text(iso: str | None, now: str) -> str:
    """``1 Dec 00:00 UTC (in 1 d 10 h)``; nothing for None."""
    if not iso:
        return ""
    minutes = int((_local(iso) - _local(now)).total_seconds()) // 60
    return f"{moment(iso)} (in {_length(minutes)})" if minutes > 0 else moment(iso)


def table(rows: list[list[str]]) -> list[str]:
    """Numbered rows in columns: the first two to the left, figures to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for number, row in enumerate(rows, 1):
        cells = [
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row[:-1], widths, strict=False))
            if width
        ]
        lines.append("   ".join([f"  {number}", *cells, row[-1]]).rstrip())
    return lines


def _length(minutes: int) -> str:
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def _local(iso: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(iso)
    return found.astimezone(zone(conf.current().zone_name))
