"""Roll-ups made from the ledger in its own database: one quarter of an hour at a time, whole."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from token_allowance.stores import ledger
from token_allowance.stores.rollups import (
    KEY,
    NAMES,
    NOT_BY_THE_PROVIDER,
    QUARTER_SECONDS,
    SUMS,
    TABLE,
    TOKENS,
    Figures,
)

Names = tuple[str, ...]  # the values of NAMES
QUARTER = dt.timedelta(seconds=QUARTER_SECONDS)
PLACES = Decimal("1E-10")  # of cost_exact: SQLite keeps it as a float
EXACT = SUMS.index("cost_exact")
NUMBERS = {
    "postgresql": f"floor(extract(epoch FROM created_at) / {QUARTER_SECONDS})::bigint",
    "sqlite": f"CAST(strftime('%%s', created_at) AS integer) / {QUARTER_SECONDS}",
}
_WORDS = ", ".join(f"'{word}'" for word in sorted(NOT_BY_THE_PROVIDER))
ESTIMATED = {
    "postgresql": f"flags ?| ARRAY[{_WORDS}]",
    "sqlite": f"EXISTS (SELECT 1 FROM json_each(flags) WHERE value IN ({_WORDS}))",
}
_GROUP = ", ".join(f'"{name}"' for name in NAMES)
_READ = ", ".join(f'"{name}"' for name in (*NAMES, *SUMS))
_SUMMED = ", ".join(f"coalesce(sum({name}), 0)" for name in TOKENS)
_COLUMNS = ", ".join(f'"{name}"' for name in (*KEY, *SUMS))
WRITE = (
    f"INSERT INTO {TABLE} ({_COLUMNS}) VALUES ({', '.join(['%s'] * len(KEY + SUMS))}) "
    f"ON CONFLICT ({', '.join(chr(34) + name + chr(34) for name in KEY)}) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in SUMS)
)
REMOVE = f"DELETE FROM {TABLE} WHERE " + " AND ".join(f'"{name}" = %s' for name in KEY)


def touched(connection: BaseDatabaseWrapper, since: dt.datetime | None) -> list[dt.datetime]:
    """The quarters in which calls began that have ended, or ended otherwise, since that moment."""
    where, values = "settled_at IS NOT NULL", []
    if since is not None:
        where += " AND settled_at >= %s"
        values.append(connection.ops.adapt_datetimefield_value(since))
    return _quarters(connection, where, values)


def between(
    connection: BaseDatabaseWrapper, start: dt.datetime, end: dt.datetime
) -> list[dt.datetime]:
    """The quarters of this stretch of time in which calls began."""
    moment = connection.ops.adapt_datetimefield_value
    where = "created_at >= %s AND created_at < %s"
    return _quarters(connection, where, [moment(start), moment(end)])


def _quarters(connection: BaseDatabaseWrapper, where: str, values: list[Any]) -> list[dt.datetime]:
    number = NUMBERS[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT DISTINCT {number} FROM {ledger.TABLE} WHERE {where}", values)
        numbers = sorted(int(found) for (found,) in cursor.fetchall())
    return [dt.datetime.fromtimestamp(n * QUARTER_SECONDS, dt.UTC) for n in numbers]


def fold(connection: BaseDatabaseWrapper, start: dt.datetime, job: str) -> int:
    """Make the roll-ups of one quarter equal its ledger rows; how many had to change.

    Whole, because what a row says may change once: its lease ran out, and then its end was heard.
    The row of ``job`` is locked, so of two that do it at once the second finds it done.
    """
    with ledger.transaction(connection), connection.cursor() as cursor:
        _lock(connection, cursor, job)
        right, written = _summed(connection, cursor, start), _stored(connection, cursor, start)
        moment = connection.ops.adapt_datetimefield_value(start)
        wrong = [(moment, *n, *f) for n, f in sorted(right.items()) if written.get(n) != f]
        gone = [(moment, *names) for names in sorted(written.keys() - right.keys())]
        if wrong:
            cursor.executemany(WRITE, wrong)
        if gone:
            cursor.executemany(REMOVE, gone)
    return len(wrong) + len(gone)


def _lock(connection: BaseDatabaseWrapper, cursor: Any, job: str) -> None:
    cursor.execute(
        "INSERT INTO token_allowance_mark (job, number) VALUES (%s, 0) "
        "ON CONFLICT (job) DO NOTHING",
        [job],
    )
    lock = " FOR UPDATE" if connection.features.has_select_for_update else ""
    cursor.execute(f"SELECT job FROM token_allowance_mark WHERE job = %s{lock}", [job])
    cursor.fetchone()


def _summed(
    connection: BaseDatabaseWrapper, cursor: Any, start: dt.datetime
) -> dict[Names, Figures]:
    """What the ledger says, by NAMES."""
    moment = connection.ops.adapt_datetimefield_value
    cursor.execute(
        f"SELECT {_GROUP}, count(*), sum(CASE WHEN estimated THEN 1 ELSE 0 END), "
        "count(*) - count(cost_micros), coalesce(sum(cost_micros), 0), "
        "coalesce(sum(cost_exact), 0), "
        f"coalesce(sum(CASE WHEN estimated THEN cost_micros END), 0), {_SUMMED} "
        f"FROM (SELECT *, {ESTIMATED[connection.vendor]} AS estimated FROM {ledger.TABLE} "
        f"WHERE created_at >= %s AND created_at < %s AND {ledger.FINAL}) AS final "
        f"GROUP BY {_GROUP}",
        [moment(start), moment(start + QUARTER)],
    )
    return _figures(cursor.fetchall())


def _stored(
    connection: BaseDatabaseWrapper, cursor: Any, start: dt.datetime
) -> dict[Names, Figures]:
    cursor.execute(
        f"SELECT {_READ} FROM {TABLE} WHERE starts_at = %s",
        [connection.ops.adapt_datetimefield_value(start)],
    )
    return _figures(cursor.fetchall())


def _figures(rows: list[Any]) -> dict[Names, Figures]:
    found = {}
    for row in rows:
        figures: list[int | Decimal] = [int(f) for f in row[len(NAMES) :]]
        figures[EXACT] = Decimal(str(row[len(NAMES) + EXACT])).quantize(PLACES)
        found[tuple(row[: len(NAMES)])] = tuple(figures)
    return found
