"""Ledger rows and roll-ups on SQLite."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from token_allowance.stores import ledger, rollups
from token_allowance.stores.base import Row
from token_allowance.stores.events import COLUMNS, DOCUMENTS, MOMENTS
from token_allowance.stores.ledger import TABLE
from token_allowance.stores.rollups import Figures, Key

_encode = json.JSONEncoder(allow_nan=False).encode
NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
MARKS = ", ".join(["%s"] * len(COLUMNS))
INSERT = f"INSERT INTO {TABLE} ({NAMES}) VALUES ({MARKS})"
UPDATE = f"UPDATE {TABLE} SET ({NAMES}) = ({MARKS}) WHERE id = %s"
ADD = f"""INSERT INTO {rollups.TABLE} AS r ({", ".join((*rollups.KEY, *rollups.SUMS))})
    VALUES ({", ".join(["%s"] * len(rollups.KEY + rollups.SUMS))})
    ON CONFLICT ({", ".join(rollups.KEY)}) DO UPDATE SET
    {", ".join(f"{name} = r.{name} + excluded.{name}" for name in rollups.SUMS)}"""


def lock(cursor: Any, prefix: str) -> str:
    cursor.execute(
        "INSERT INTO token_allowance_outbox (prefix, watermark, epoch) VALUES (%s, '0-0', 0) "
        "ON CONFLICT (prefix) DO NOTHING",
        [prefix],
    )
    cursor.execute("SELECT watermark FROM token_allowance_outbox WHERE prefix = %s", [prefix])
    return cast(str, cursor.fetchone()[0])


def rows(cursor: Any, ids: Sequence[str]) -> dict[str, Row]:
    cursor.execute(
        f"SELECT {NAMES} FROM {TABLE} WHERE id IN (SELECT value FROM json_each(%s))",
        [json.dumps([id.replace("-", "") for id in ids])],
    )
    found = {}
    for values in cursor.fetchall():
        row = dict(zip(COLUMNS, values, strict=True))
        row["id"] = str(UUID(row["id"]))
        row["flags"] = json.loads(row["flags"])
        row["cost_exact"] = None if row["cost_exact"] is None else str(row["cost_exact"])
        for name in MOMENTS:
            row[name] = ledger._iso(row[name])
        found[row["id"]] = row
    return found


def owners(cursor: Any, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    condition = ledger.NOT_EMPTY.format("idempotency_key")
    cursor.execute(
        f"SELECT tenant, idempotency_key, id FROM {TABLE} WHERE {condition} "
        "AND (tenant, idempotency_key) IN (SELECT json_extract(value, '$[0]'), "
        "json_extract(value, '$[1]') FROM json_each(%s))",
        [json.dumps(keys)],
    )
    return {(tenant, key): str(UUID(id)) for tenant, key, id in cursor.fetchall()}


def insert(connection: BaseDatabaseWrapper, cursor: Any, rows: Iterator[Row]) -> None:
    cursor.executemany(INSERT, (_values(connection, row) for row in rows))


def replace(connection: BaseDatabaseWrapper, cursor: Any, rows: list[Row]) -> None:
    cursor.executemany(UPDATE, [(*v, v[0]) for v in (_values(connection, row) for row in rows)])


def add(connection: BaseDatabaseWrapper, cursor: Any, sums: Mapping[Key, Figures]) -> None:
    exact = rollups.SUMS.index("cost_exact")
    lines = []
    for (at, *names), figures in sums.items():
        numbers = [*figures[:exact], str(figures[exact]), *figures[exact + 1 :]]
        moment = _moment(connection, dt.datetime.fromtimestamp(at, dt.UTC))
        lines.append((moment, *names, *numbers))
    cursor.executemany(ADD, lines)


def _values(connection: BaseDatabaseWrapper, row: Row) -> list[Any]:
    """Values as Django's own fields would store them."""
    row = row.copy()
    row["id"] = row["id"].replace("-", "")
    for name in DOCUMENTS:
        value = row[name]
        if value is not None and not isinstance(value, str):
            row[name] = _encode(value)
    for name in MOMENTS:
        if row[name] is not None:
            row[name] = _moment(connection, dt.datetime.fromisoformat(row[name]))
    return [row[name] for name in COLUMNS]


def _moment(connection: BaseDatabaseWrapper, moment: dt.datetime) -> Any:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    return connection.ops.adapt_datetimefield_value(aware)
