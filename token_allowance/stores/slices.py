"""The slices of rolling windows: counters of their own, in SQL that PostgreSQL and SQLite share."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from token_allowance import keys, rolling
from token_allowance.limits import Budget
from token_allowance.stores import base
from token_allowance.stores.base import Drift, Room

MICROSECONDS = {
    "postgresql": "(extract(epoch FROM created_at) * 1000000)::bigint",
    "sqlite": "(CAST(strftime('%%s', created_at) AS INTEGER) * 1000000 "
    "+ CAST(substr(substr(created_at, 21) || '000000', 1, 6) AS INTEGER))",
}


def of_ledger_row(connection: BaseDatabaseWrapper, budget: Budget) -> str:
    """The number of the slice that holds a ledger row, as SQL."""
    length = rolling.slice_micros(budget.limit.rolling_seconds)
    return f"{MICROSECONDS[connection.vendor]} / {length}"


def room(cursor: Any, budget: Budget) -> Room:
    """A rolling budget by its counters. The caller has seen that it is counted."""
    assert budget.slice is not None
    numbers = rolling.numbers(budget.slice)
    cursor.execute(
        "SELECT slice, used, reserved FROM token_allowance_counter "
        "WHERE part_of = %s AND slice BETWEEN %s AND %s",
        [budget.key, numbers[0], numbers[-1]],
    )
    return base.rolled(budget, {number: (u, r) for number, u, r in cursor.fetchall()})


def dated(connection: BaseDatabaseWrapper, rooms: Sequence[Room]) -> tuple[Room, ...]:
    """These rooms; the rolling ones with their slices, which say when there is room again."""
    with connection.cursor() as cursor:
        return tuple(
            r if r.budget.slice is None
            else Room(r.budget, r.used, r.reserved, room(cursor, r.budget).slices)
            for r in rooms
        )  # fmt: skip


def combined(
    used: Sequence[tuple[int, int]], reserved: Sequence[tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    """(used, reserved) by slice, from rows of a slice and an amount."""
    figures = defaultdict[int, list[int]](lambda: [0, 0])
    for place, found in enumerate((used, reserved)):
        for number, amount in found:
            figures[number][place] += int(amount)
    return {number: (u, r) for number, (u, r) in figures.items()}


def refill(cursor: Any, budget: Budget, figures: dict[int, tuple[int, int]], lock: str) -> Drift:
    """Put these figures in the place of the slices there are. The caller keeps reserves out."""
    key, number = budget.key, budget.slice
    assert number is not None
    cursor.execute(f"SELECT key FROM token_allowance_counter WHERE part_of = %s{lock}", [key])
    cursor.fetchall()
    before = room(cursor, budget)
    cursor.execute(
        "INSERT INTO token_allowance_counter (key, used, reserved, since) VALUES (%s, 0, 0, %s) "
        "ON CONFLICT (key) DO UPDATE SET since = excluded.since",
        [key, budget.since],
    )
    cursor.execute("DELETE FROM token_allowance_counter WHERE part_of = %s", [key])
    for n, (used, reserved) in figures.items():
        _insert(cursor, key, n, used, reserved)
    after = room(cursor, budget)
    return Drift(key, (before.used, after.used), (before.reserved, after.reserved))


def hold(cursor: Any, budget: Budget, number: int, amount: int) -> None:
    """Hold more in a slice. A new one ends old ones, by the slower of two clocks."""
    cursor.execute(
        "UPDATE token_allowance_counter SET reserved = reserved + %s WHERE key = %s",
        [amount, budget.held_in],
    )
    if cursor.rowcount:
        return
    _insert(cursor, budget.key, number, 0, amount)
    now = rolling.slice_at(budget.limit.rolling_seconds, dt.datetime.now(dt.UTC))
    cursor.execute(
        "DELETE FROM token_allowance_counter WHERE part_of = %s AND slice < %s",
        [budget.key, rolling.numbers_kept(min(number, now))[0]],
    )


def add_late(cursor: Any, whole: str, name: str, used: int) -> None:
    """Charge a slice that no reserve has opened, if its budget is counted at all."""
    cursor.execute("SELECT 1 FROM token_allowance_counter WHERE key = %s", [whole])
    if cursor.fetchone():
        _insert(cursor, whole, int(name.rpartition("|")[2]), used, 0)


def _insert(cursor: Any, key: str, number: int, used: int, reserved: int) -> None:
    cursor.execute(
        "INSERT INTO token_allowance_counter (key, used, reserved, since, part_of, slice) "
        "VALUES (%s, %s, %s, 0, %s, %s)",
        [keys.of_slice(key, number), used, reserved, key, number],
    )
