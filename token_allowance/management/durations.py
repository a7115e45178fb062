"""A length of time as people type it: ``30m``, ``2h``, ``1h30m``."""

from __future__ import annotations

import argparse
import datetime as dt
import re

PART = re.compile(r"(\d+)(s|m|h|d)")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
MOST = dt.timedelta(days=366)


def duration(text: str) -> dt.timedelta:
    """Raises ArgumentTypeError, with an example, for what is none or longer than a year."""
    parts = PART.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give minutes, hours or days, such as 30m, 2h or 1h30m"
        )
    try:
        found = sum((dt.timedelta(**{UNITS[u]: int(n)}) for n, u in parts), dt.timedelta())
    except OverflowError:
        found = MOST * 2
    if not dt.timedelta() < found <= MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not between a second and a year")
    return found


def spoken(length: dt.timedelta) -> str:
    """The same as ``duration`` reads it, in whole seconds; "0s" if it is over."""
    seconds = max(0, round(length.total_seconds()))
    parts = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        number, seconds = divmod(seconds, size)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts) or "0s"
