"""Ledger rows and roll-ups on PostgreSQL, by COPY."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from django.db.backends.base.base import BaseDatabaseWrapper

from token_allowance.stores import ledger, rollups
from token_allowance.stores.base import Row
from token_allowance.stores.events import COLUMNS, DOCUMENTS, MOMENTS
from token_allowance.stores.ledger import TABLE
from token_allowance.stores.rollups import Figures, Key

LOCK_MILLISECONDS = 10_000
PLACES = tuple(COLUMNS.index(name) for name in DOCUMENTS)
BETWEEN, BETWEEN_TEXT = "\x1f", ',"\\u001f",'
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
STAGED = ", ".join(f's."{name}"' for name in COLUMNS)
TEXT = ("id", "cost_exact", *DOCUMENTS)  # read as they are written, so that nothing is rounded
READ = ", ".join(f'"{name}"' + ("::text" if name in TEXT else "") for name in COLUMNS)
SPENDS = ", ".join(f'"{name}"' for name in (*rollups.KEY, *rollups.SUMS))


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


def insert(connection: BaseDatabaseWrapper, cursor: Any, rows: Iterator[Row]) -> None:
    """The rows are made while the server takes in those before."""
    _copy(connection, cursor, TABLE, NAMES, map(_values, rows))


def replace(connection: BaseDatabaseWrapper, cursor: Any, rows: list[Row]) -> None:
    if rows:
        _stage(connection, cursor, TABLE, NAMES, map(_values, rows))
        cursor.execute(
            f"UPDATE {TABLE} r SET ({NAMES}) = ({STAGED}) FROM staged s WHERE r.id = s.id"
        )
        cursor.execute("DROP TABLE staged")


def add(connection: BaseDatabaseWrapper, cursor: Any, sums: Mapping[Key, Figures]) -> None:
    if not sums:
        return
    moments = {at: dt.datetime.fromtimestamp(at, dt.UTC).isoformat() for at, *_ in sums}
    lines = ((moments[at], *n, *map(str, figures)) for (at, *n), figures in sorted(sums.items()))
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
    """The row with its documents as JSON: one call of the encoder is cheaper than four."""
    values = list(row.values())
    places = [p for p in PLACES if values[p] and type(values[p]) is not str]
    between: list[Any] = [BETWEEN] * (2 * len(places) - 1)
    between[::2] = [values[place] for place in places]
    texts = _encode(between)[1:-1].split(BETWEEN_TEXT)
    if len(texts) != len(places):
        texts = [_encode(values[place]) for place in places]
    for place, text in zip(places, texts, strict=True):
        values[place] = text
    for place in PLACES:
        if values[place] in ([], {}):
            values[place] = repr(values[place])
    return values
