"""Ledger rows and roll-ups on PostgreSQL, by COPY."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Sequence
from typing import Any, cast

from django.db import transaction as transactions
from django.db.backends.base.base import BaseDatabaseWrapper

from token_allowance.stores import ledger, rollups
from token_allowance.stores.base import Row
from token_allowance.stores.events import COLUMNS, DOCUMENTS, MOMENTS
from token_allowance.stores.ledger import TABLE

LOCK_MILLISECONDS = 10_000
NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
STAGED = ", ".join(f's."{name}"' for name in COLUMNS)
TEXT = ("id", "cost_exact", *DOCUMENTS)  # read as they are written, so that nothing is rounded
READ = ", ".join(f'"{name}"' + ("::text" if name in TEXT else "") for name in COLUMNS)
SPENDS = ", ".join(f'"{name}"' for name in (*rollups.KEY, *rollups.SUMS))


def transaction(connection: BaseDatabaseWrapper) -> Any:
    if connection.in_atomic_block:
        return transactions.atomic(connection.alias)
    return ledger.OwnTransaction(connection, "BEGIN")


def lock(cursor: Any, prefix: str) -> str:
    cursor.execute(f"SELECT set_config('lock_timeout', '{LOCK_MILLISECONDS}', true)")
    cursor.execute(
        "INSERT INTO token_allowance_outbox (prefix, watermark, epoch) VALUES (%s, '0-0', 0) "
        "ON CONFLICT (prefix) DO NOTHING",
        [prefix],
    )
    cursor.execute(
        "SELECT watermark FROM token_allowance_outbox WHERE prefix = %s FOR UPDATE", [prefix]
    )
    return cast(str, cursor.fetchone()[0])


def rows(cursor: Any, ids: Sequence[str]) -> dict[str, Row]:
    cursor.execute(
        f"SELECT {READ} FROM {TABLE} WHERE id = ANY (%s::uuid[]) ORDER BY id FOR UPDATE",
        [f"{{{','.join(ids)}}}"],
    )
    found = {}
    for values in cursor.fetchall():
        row = dict(zip(COLUMNS, values, strict=True))
        row["flags"] = json.loads(row["flags"])
        for name in MOMENTS:
            if row[name] is not None:
                row[name] = row[name].isoformat()
        found[row["id"]] = row
    return found


def owners(cursor: Any, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    tenants, names = [key[0] for key in keys], [key[1] for key in keys]
    cursor.execute(
        f"SELECT r.tenant, r.idempotency_key, r.id::text FROM {TABLE} r "
        "JOIN unnest(%s::text[], %s::text[]) AS w (tenant, name) "
        "ON r.tenant = w.tenant AND r.idempotency_key = w.name "
        f"WHERE {ledger.NOT_EMPTY.format('idempotency_key')}",
        [tenants, names],
    )
    return {(tenant, key): id for tenant, key, id in cursor.fetchall()}


def write(
    connection: BaseDatabaseWrapper, cursor: Any, new: list[Row], old: list[Row],
    sums: dict[rollups.Key, list[Any]],
) -> None:  # fmt: skip
    """A row that gives its key back comes before one that takes it."""
    if old:
        _stage(connection, cursor, TABLE, NAMES, (_values(row) for row in old))
        cursor.execute(
            f"UPDATE {TABLE} r SET ({NAMES}) = ({STAGED}) FROM staged s WHERE r.id = s.id"
        )
        cursor.execute("DROP TABLE staged")
    if new:
        _copy(connection, cursor, TABLE, NAMES, (_values(row) for row in new))
    if sums:
        _add(connection, cursor, sums)


def _add(connection: BaseDatabaseWrapper, cursor: Any, sums: dict[rollups.Key, list[Any]]) -> None:
    lines = (
        (dt.datetime.fromtimestamp(at, dt.UTC).isoformat(), *names, *figures)
        for (at, *names), figures in sorted(sums.items())
    )
    _stage(connection, cursor, rollups.TABLE, SPENDS, lines)
    more = ", ".join(f"{name} = r.{name} + excluded.{name}" for name in rollups.SUMS)
    key = ", ".join(f'"{name}"' for name in rollups.KEY)
    cursor.execute(
        f"INSERT INTO {rollups.TABLE} AS r ({SPENDS}) SELECT {SPENDS} FROM staged "
        f"ON CONFLICT ({key}) DO UPDATE SET {more}"
    )
    cursor.execute("DROP TABLE staged")


def _stage(
    connection: BaseDatabaseWrapper, cursor: Any, table: str, names: str,
    lines: Iterable[Sequence[Any]],
) -> None:  # fmt: skip
    cursor.execute(
        f"CREATE TEMP TABLE staged ON COMMIT DROP AS SELECT {names} FROM {table} WITH NO DATA"
    )
    _copy(connection, cursor, "staged", names, lines)


def _copy(
    connection: BaseDatabaseWrapper, cursor: Any, table: str, names: str,
    lines: Iterable[Sequence[Any]],
) -> None:  # fmt: skip
    with (
        connection.wrap_database_errors,
        cursor.cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy,
    ):
        for line in lines:
            copy.write_row(line)


def _values(row: Row) -> list[Any]:
    row = row.copy()
    for name in DOCUMENTS:
        value = row[name]
        if value is not None and not isinstance(value, str):
            row[name] = json.dumps(value, allow_nan=False)
    return list(row.values())
