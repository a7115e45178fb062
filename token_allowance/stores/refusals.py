"""Refused calls by minute, added to what other processes have counted."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

TABLE = "token_allowance_refusal"


class Refused(NamedTuple):
    """What one row counts, in the order in which every process locks them."""

    starts_at: dt.datetime
    code: str
    key: str = ""
    tenant: str = ""
    user: str = ""
    feature: str = ""
    provider: str = ""
    model: str = ""


class Times(NamedTuple):
    """How many calls, and when the first and the last of them."""

    calls: int
    first_at: dt.datetime
    last_at: dt.datetime

    def plus(self, other: Times) -> Times:
        first, last = min(self.first_at, other.first_at), max(self.last_at, other.last_at)
        return Times(self.calls + other.calls, first, last)


COLUMNS = ", ".join(f'"{name}"' for name in (*Refused._fields, *Times._fields))
ONCE = ", ".join(f'"{name}"' for name in Refused._fields)
ADDED = (
    f"calls = {TABLE}.calls + excluded.calls, "
    f"first_at = CASE WHEN excluded.first_at < {TABLE}.first_at "
    f"THEN excluded.first_at ELSE {TABLE}.first_at END, "
    f"last_at = CASE WHEN excluded.last_at > {TABLE}.last_at "
    f"THEN excluded.last_at ELSE {TABLE}.last_at END"
)


def add(connection: BaseDatabaseWrapper, counted: Sequence[tuple[Refused, Times]]) -> None:
    """Add these, in one statement: all or nothing, and in the order given."""
    moment = connection.ops.adapt_datetimefield_value
    one = f"({', '.join(['%s'] * (len(Refused._fields) + len(Times._fields)))})"
    values: list[Any] = []
    for row, times in counted:
        values += [moment(row.starts_at), *row[1:]]
        values += [times.calls, moment(times.first_at), moment(times.last_at)]
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {TABLE} ({COLUMNS}) VALUES {', '.join([one] * len(counted))} "
            f"ON CONFLICT ({ONCE}) DO UPDATE SET {ADDED}",
            values,
        )
