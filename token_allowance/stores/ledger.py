"""What the ledger says about a budget, in SQL that PostgreSQL and SQLite share.

Not on the hot path: used to seed a counter, to rebuild one, and to show figures.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any
from uuid import UUID

from django.db import transaction as transactions
from django.db.backends.base.base import BaseDatabaseWrapper

from token_allowance.counters import budget_of
from token_allowance.limits import RUN, Budget, Unit
from token_allowance.stores import adjustments, base, charges, slices
from token_allowance.stores.base import Drift, Room, Row

TABLE = "token_allowance_reservation"
CHARGED = {
    Unit.COST: "coalesce(sum(cost_micros), 0)",
    Unit.TOKENS: "coalesce(sum(input_tokens + output_tokens), 0)",
    Unit.CALLS: "count(*)",
}
HELD = {
    Unit.COST: "coalesce(sum(reserved_micros), 0)",
    Unit.TOKENS: "coalesce(sum(reserved_tokens), 0)",
    Unit.CALLS: "count(*)",
}
# The condition of a partial index; SQLite uses one only where a query has it word for word.
NOT_EMPTY = "NOT (\"{}\" = '')"
FINAL = "state IN ('settled', 'expired') AND settled_at IS NOT NULL"
AT_ONCE = 500  # keys asked for in one statement
MOMENTS = ("created_at", "settled_at", "expires_at")
DOCUMENTS = ("flags", "usage", "raw_usage", "price", "holds")


class OwnTransaction(AbstractContextManager[None]):
    """A transaction on a connection that Django's alias list does not know."""

    def __init__(self, connection: BaseDatabaseWrapper, begin: str) -> None:
        self.connection = connection
        self.begin = begin

    def __enter__(self) -> None:
        self._execute(self.begin)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self.connection.connection is None:
            return
        self._execute("COMMIT" if kind is None else "ROLLBACK")

    def _execute(self, sql: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)


def transaction(connection: BaseDatabaseWrapper) -> AbstractContextManager[None]:
    """A transaction on a connection of ours, or inside the caller's on one that is joined.

    ``transaction.atomic`` looks connections up by alias, and ours is in no such list.
    """
    if connection.in_atomic_block:
        return transactions.atomic(connection.alias)
    begin = "BEGIN IMMEDIATE" if connection.vendor == "sqlite" else "BEGIN"
    return OwnTransaction(connection, begin)


def scope(connection: BaseDatabaseWrapper, budget: Budget) -> tuple[str, list[Any]]:
    """The condition that selects a budget's ledger rows, with its values."""
    if budget.is_cap:
        return _inside(connection, budget.values[0][1])
    parts: list[str] = ["1 = 1"]
    values: list[Any] = []
    for name, value in budget.values:
        parts.append(
            f'"{name}" = %s' + (f" AND {NOT_EMPTY.format(name)}" if name == "user" else "")
        )
        values.append(value)
    for operator, moment in ((">=", budget.window.start), ("<", budget.window.end)):
        if moment is not None:
            parts.append(f"created_at {operator} %s")
            values.append(connection.ops.adapt_datetimefield_value(moment))
    return " AND ".join(parts), values


def _inside(connection: BaseDatabaseWrapper, path: str) -> tuple[str, list[Any]]:
    """The rows of a run and of the runs inside it, in words that the index on them understands."""
    least, most = ("~>=~", "~<~") if connection.vendor == "postgresql" else (">=", "<")
    after = path[:-1] + chr(ord("/") + 1)
    return f"{NOT_EMPTY.format(RUN)} AND {RUN} {least} %s AND {RUN} {most} %s", [path, after]


def sums(
    cursor: Any, connection: BaseDatabaseWrapper, budget: Budget
) -> dict[int, tuple[int, int]]:
    """(used, reserved) of a budget by its ledger rows and adjustments: of each slice, or as if of
    one slice 0."""
    where, values = scope(connection, budget)
    unit, number = budget.limit.unit, "0"
    if budget.slice is not None:
        number = slices.of_ledger_row(connection, budget)
    found = []
    for amount, state in ((CHARGED[unit], FINAL), (HELD[unit], "state = 'reserved'")):
        sql = f"SELECT {number} AS n, {amount} FROM {TABLE} WHERE {where} AND {state} GROUP BY n"
        cursor.execute(sql, values)
        found.append(list(cursor.fetchall()))
    found[0] += adjustments.sums(cursor, budget).items()
    return slices.combined(*found)


def seed(
    connection: BaseDatabaseWrapper, cursor: Any, budget: Budget, *, again: bool, lock: str = ""
) -> Drift:
    """Make a counter say what the ledger says, and let open rows settle into it (protocol B).

    The caller holds the transaction, and keeps reserves out. Of many callers that meet a new limit
    only the first has to count: the others find it done, unless they ask for it ``again``.
    """
    if not again and _counted(cursor, budget):
        return Drift(budget.key, (0, 0), (0, 0))
    wide = base.kept(budget)
    attach(connection, cursor, budget, lock=lock)
    figures = sums(cursor, connection, wide)
    if budget.slice is not None:
        return slices.refill(cursor, budget, figures, lock)
    cursor.execute(
        f"SELECT used, reserved FROM token_allowance_counter WHERE key = %s{lock}", [budget.key]
    )
    before = cursor.fetchone() or (0, 0)
    used, reserved = figures.get(0, (0, 0))
    cursor.execute(
        "INSERT INTO token_allowance_counter (key, used, reserved, since) VALUES (%s, %s, %s, %s) "
        "ON CONFLICT (key) DO UPDATE SET used = excluded.used, reserved = excluded.reserved, "
        "since = excluded.since",
        [budget.key, used, reserved, budget.since],
    )
    return Drift(budget.key, (before[0], used), (before[1], reserved))


def attach(
    connection: BaseDatabaseWrapper, cursor: Any, budget: Budget, *, lock: str = ""
) -> list[Row]:
    """Let the open rows of a budget settle into its counter too; these rows, with their holds."""
    where, values = scope(connection, base.kept(budget))
    columns = (
        "id", "state", "holds", "reserved_micros", "reserved_tokens", "created_at", "settled_at",
        "expires_at", "tenant", "idempotency_key",
    )  # fmt: skip
    cursor.execute(
        f"SELECT {', '.join(columns)} FROM {TABLE} "
        f"WHERE {where} AND state IN ('reserved', 'expired') ORDER BY id{lock}",
        values,
    )
    rows = [dict(zip(columns, found, strict=True)) for found in cursor.fetchall()]
    for row in rows:
        listed = json.loads(row["holds"]) if isinstance(row["holds"], str) else row["holds"]
        row["holds"] = listed
        name = charges.held_in(row, budget)
        if all(hold[0] != name for hold in listed):
            unit = budget.limit.unit
            listed.append([name, unit.value, charges.held(row, unit)])
            cursor.execute(
                f"UPDATE {TABLE} SET holds = %s WHERE id = %s", [json.dumps(listed), row["id"]]
            )
    return rows


def _counted(cursor: Any, budget: Budget) -> bool:
    cursor.execute("SELECT since FROM token_allowance_counter WHERE key = %s", [budget.key])
    found = cursor.fetchone()
    return found is not None and found[0] >= budget.since


def figures(connection: BaseDatabaseWrapper, budgets: Sequence[Budget]) -> list[Room]:
    """Each budget by its counter, or by its ledger rows where no counter has been opened."""
    rooms = []
    with connection.cursor() as cursor:
        counted = _counters(cursor, [budget.key for budget in budgets])
        for budget in budgets:
            found = counted.get(budget.key)
            if found and found[2] >= budget.since:
                rolls = budget.slice is not None
                rooms.append(slices.room(cursor, budget) if rolls else Room(budget, *found[:2]))
            elif not found and base.fresh(budget):
                rooms.append(Room(budget, 0, 0))
            else:
                rooms.append(_summed(cursor, connection, budget))
    return rooms


def _counters(cursor: Any, keys: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    """(used, reserved, since) of the counters that there are."""
    found = {}
    for start in range(0, len(keys), AT_ONCE):
        some = keys[start : start + AT_ONCE]
        cursor.execute(
            "SELECT key, used, reserved, since FROM token_allowance_counter "
            f"WHERE key IN ({', '.join(['%s'] * len(some))})",
            some,
        )
        found.update({key: (used, reserved, since) for key, used, reserved, since in cursor})
    return found


def _summed(cursor: Any, connection: BaseDatabaseWrapper, budget: Budget) -> Room:
    figures = sums(cursor, connection, budget)
    if budget.slice is not None:
        return base.rolled(budget, figures)
    return Room(budget, *figures.get(0, (0, 0)))


def open_budgets(connection: BaseDatabaseWrapper, now: dt.datetime) -> list[Budget]:
    """The budgets of all counters whose window has not ended."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT key, since FROM token_allowance_counter WHERE slice IS NULL ORDER BY key"
        )
        found = cursor.fetchall()
    budgets = [budget_of(key, since, now) for key, since in found]
    return [b for b in budgets if b.window.end is None or b.window.end > now]


def find(connection: BaseDatabaseWrapper, wanted: Mapping[str, str]) -> Row | None:
    """The ledger row with these values, which are not all empty; its values as JSON has them."""
    named = [NOT_EMPTY.format(name) for name in wanted if name not in ("tenant", "id")]
    where = " AND ".join([*named, *(f"{name} = %s" for name in wanted)])
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {TABLE} WHERE {where}", list(wanted.values()))
        found = cursor.fetchone()
        if found is None:
            return None
        row = dict(zip((c[0] for c in cursor.description), found, strict=True))
    for name in MOMENTS:
        row[name] = _iso(row[name])
    for name in DOCUMENTS:
        row[name] = json.loads(row[name]) if isinstance(row[name], str) else row[name]
    row["id"] = str(UUID(str(row["id"])))
    row["cost_exact"] = None if row["cost_exact"] is None else str(row["cost_exact"])
    return row


def _iso(moment: dt.datetime | str | None) -> str | None:
    if moment is None:
        return None
    return aware(moment).isoformat()


def aware(moment: dt.datetime | str) -> dt.datetime:
    """A column's moment; SQLite has it as text without a zone, which is UTC."""
    if isinstance(moment, str):
        moment = dt.datetime.fromisoformat(moment)
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
