"""Reading fields of a provider's JSON without trusting their types or sizes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Context, Decimal, InvalidOperation
from typing import Any

LARGEST_COUNT = 2**40  # no call has more tokens than this: a larger figure is a fault
_LONGEST_LABEL = 200
_HIGHEST = 1_000_000
_CONTEXT = Context(prec=40)
_FINEST = Decimal("1e-16")  # ten decimals of a micro-dollar, as the ledger keeps them
_DEEPEST = 4
_FIELD_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def record(data: bytes) -> dict[str, Any] | None:
    """The JSON object in ``data``, None if there is none. Never raises."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def mapping(value: object) -> Mapping[str, Any]:
    """``value`` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The objects in a list; empty if ``value`` is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def label(value: object) -> str:
    """A short printable name, such as a model's or a tier's; anything else is ``""``."""
    fits = isinstance(value, str) and len(value) <= _LONGEST_LABEL and value.isprintable()
    return str(value) if fits else ""


def decimal(value: object) -> Decimal | None:
    """A number as it was written; None for what is none, negative or absurd (case C17)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        amount = Decimal(str(value))  # the shortest text of a float is the text it was read from
    except InvalidOperation:
        return None
    fits = amount.is_finite() and 0 <= amount <= _HIGHEST
    return _CONTEXT.quantize(amount, _FINEST) if fits else None


def seconds(value: object) -> int:
    """A duration in started seconds; 0 for what is none."""
    amount = decimal(value)
    return 0 if amount is None else math.ceil(amount)


def ceiling(value: object) -> int | None:
    """A maximum that a request asks for: at least 1, at most ``LARGEST_COUNT``, or None."""
    number = _integer(value)
    return min(number, LARGEST_COUNT) if number is not None and number > 0 else None


def numbers(value: Mapping[str, Any], depth: int = _DEEPEST) -> dict[str, object]:
    """The numbers of a usage object, nested as they were. Text never passes, nor odd names."""
    kept: dict[str, object] = {}
    for name, item in value.items():
        if not _FIELD_NAME.fullmatch(name):
            continue
        if isinstance(item, dict):
            if depth > 1 and (inner := numbers(item, depth - 1)):
                kept[name] = inner
        elif isinstance(item, (int, float)) and abs(item) < 2**63:  # false for NaN as well
            kept[name] = item
    return kept


class Figures:
    """The counts of one usage object; ``anomaly`` tells whether one could not be right.

    Null and absent figures are None (case C18). Floats and numeric strings are read (case C03);
    negative, fractional, absurd and unreadable ones are dropped as anomalies (case C19).
    """

    def __init__(self, source: Mapping[str, Any]) -> None:
        self._source = source
        self.anomaly = False

    def get(self, *path: str) -> int | None:
        value: object = self._source
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if value is None:
            return None
        if type(value) is int and 0 <= value <= LARGEST_COUNT:  # as nearly all are
            return value
        number = _integer(value)
        if number is None or not 0 <= number <= LARGEST_COUNT:
            self.anomaly = True
            return None
        return number

    def first(self, *paths: tuple[str, ...]) -> int:
        """The first figure that is not zero: the same count has other names elsewhere."""
        return next((number for path in paths if (number := self.get(*path))), 0)

    def within(self, part: int, whole: int) -> int:
        """``part``, which cannot exceed ``whole``."""
        if part > whole:
            self.anomaly = True
        return min(part, whole)


def _integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = int(value) if value.strip().isdecimal() else float(value)
        except ValueError:
            return None
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value.is_integer() else None
    return value if isinstance(value, int) else None
