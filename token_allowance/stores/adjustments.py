"""Adjustments: how one is spread over counters, and in SQL that PostgreSQL and SQLite share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from token_allowance import keys, rolling
from token_allowance.limits import DIMENSIONS, Budget
from token_allowance.money import MAX_MICROS
from token_allowance.stores import slices
from token_allowance.stores.base import Adjusted, Room, Row
from token_allowance.stores.connections import written_id

COUNTERS = "token_allowance_counter"
TABLE = "token_allowance_adjustment"
COLUMNS = ("id", "key", *DIMENSIONS, "unit", "amount", "reason", "by", "created_at")


def names(budget: Budget) -> dict[int, str]:
    """The counters of a budget by slice, all that it keeps; or its only one, as of slice 0."""
    if budget.slice is None:
        return {0: budget.key}
    return {n: keys.of_slice(budget.key, n) for n in rolling.numbers_kept(budget.slice)}


def parts(budget: Budget, used: Mapping[int, int], amount: int | None) -> dict[int, int]:
    """What is added to each counter, given what each that counts now has used; None: all of it off.

    Nothing falls below zero. More is of now; what is given back comes off the newest slices first:
    off the slice of now alone it would be given twice, once the older ones have left the window.
    """
    total = sum(used.values())
    change = -total if amount is None else max(-total, min(amount, MAX_MICROS - total))
    if change > 0:
        return {budget.slice or 0: change}
    found = {}
    for number in sorted(used, reverse=True):
        if part := max(change, -used[number]):
            found[number] = part
            change -= part
    return found


def ids(row: Row) -> tuple[UUID, UUID]:
    """The first and the last id that the rows of one adjustment can have."""
    first = UUID(str(row["id"]))
    return first, UUID(int=first.int + rolling.BEHIND + rolling.AHEAD)


def rows(budget: Budget, changes: Mapping[int, int], row: Row) -> list[Row]:
    """The rows of one adjustment, one for each counter that moves; their ids follow the first."""
    first, named = ids(row)[0], names(budget)
    values = {**dict.fromkeys(DIMENSIONS, ""), **dict(budget.values)}
    return [
        {
            **row,
            **values,
            "id": UUID(int=first.int + place),
            "key": named[number],
            "unit": budget.limit.unit.value,
            "amount": change,
        }
        for place, (number, change) in enumerate(changes.items())
    ]


def sums(cursor: Any, budget: Budget) -> dict[int, int]:
    """What adjustments have added to each counter of the budget's window."""
    if budget.is_cap:
        return {}
    named = {
        name: number
        for number, name in names(budget).items()
        if budget.slice is None
        or budget.window.contains(rolling.start(budget.limit.rolling_seconds, number))
    }
    marks = ", ".join(["%s"] * len(named))
    cursor.execute(
        f"SELECT key, sum(amount) FROM {TABLE} WHERE key IN ({marks}) GROUP BY key", list(named)
    )
    return {named[key]: int(amount) for key, amount in cursor.fetchall()}


def adjust(
    connection: BaseDatabaseWrapper,
    cursor: Any,
    budget: Budget,
    amount: int | None,
    row: Row,
    *,
    lock: str = "",
) -> Adjusted:
    """Write the rows and move the counters. The caller holds the transaction, keeps reserves out
    and has counted the budget."""
    done = _done(connection, cursor, row)
    if done is not None:
        return Adjusted(done, _room(cursor, budget))
    named = names(budget)
    changes = parts(budget, _used(cursor, budget, lock), amount)
    for number, change in changes.items():
        rolls = budget.slice is not None
        cursor.execute(
            f"INSERT INTO {COUNTERS} (key, used, reserved, since, part_of, slice) "
            "VALUES (%s, %s, 0, 0, %s, %s) "
            f"ON CONFLICT (key) DO UPDATE SET used = {COUNTERS}.used + excluded.used",
            [named[number], change, budget.key if rolls else None, number if rolls else None],
        )
    for written in rows(budget, changes, row):
        _insert(connection, cursor, written)
    return Adjusted(sum(changes.values()), _room(cursor, budget))


def record(
    connection: BaseDatabaseWrapper,
    budget: Budget,
    figures: Mapping[int, tuple[int, int]],
    amount: int | None,
    row: Row,
) -> int:
    """Write the rows, for a store that keeps counters elsewhere; what was added. Repeating it
    changes nothing. The caller keeps reserves out; ``figures`` are (used, reserved) by slice."""
    with connection.cursor() as cursor:
        done = _done(connection, cursor, row)
        if done is not None:
            return done
        changes = parts(budget, {n: used for n, (used, _) in figures.items()}, amount)
        for written in rows(budget, changes, row):
            _insert(connection, cursor, written)
        return sum(changes.values())


def _done(connection: BaseDatabaseWrapper, cursor: Any, row: Row) -> int | None:
    """What an adjustment has added, if it was made before and its answer was lost."""
    cursor.execute(
        f"SELECT sum(amount) FROM {TABLE} WHERE id BETWEEN %s AND %s",
        [written_id(connection, id) for id in ids(row)],
    )
    found = cursor.fetchone()[0]
    return None if found is None else int(found)


def _used(cursor: Any, budget: Budget, lock: str) -> dict[int, int]:
    if budget.slice is None:
        cursor.execute(f"SELECT 0, used FROM {COUNTERS} WHERE key = %s{lock}", [budget.key])
    else:
        counted = rolling.numbers(budget.slice)
        cursor.execute(
            f"SELECT slice, used FROM {COUNTERS} WHERE part_of = %s AND slice BETWEEN %s AND %s "
            f"ORDER BY key{lock}",
            [budget.key, counted[0], counted[-1]],
        )
    return dict(cursor.fetchall())


def _room(cursor: Any, budget: Budget) -> Room:
    if budget.slice is not None:
        return slices.room(cursor, budget)
    cursor.execute(f"SELECT used, reserved FROM {COUNTERS} WHERE key = %s", [budget.key])
    return Room(budget, *cursor.fetchone())


def _insert(connection: BaseDatabaseWrapper, cursor: Any, row: Row) -> None:
    columns = ", ".join(f'"{name}"' for name in COLUMNS)
    marks = ", ".join(["%s"] * len(COLUMNS))
    cursor.execute(
        f"INSERT INTO {TABLE} ({columns}) VALUES ({marks})",
        [_value(connection, name, row[name]) for name in COLUMNS],
    )


def _value(connection: BaseDatabaseWrapper, name: str, value: Any) -> Any:
    if name == "id":
        return written_id(connection, value)
    if name == "created_at":
        return connection.ops.adapt_datetimefield_value(value)
    return value
