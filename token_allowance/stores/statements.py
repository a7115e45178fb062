"""One statement to PostgreSQL by the shortest way: bound and, if it may be, prepared there.

Django's cursor writes values into the text of a statement, which is then parsed and planned anew
each time. On a connection of our own nothing of what it adds is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import count
from typing import Any, cast
from weakref import WeakKeyDictionary

from django.db.backends.base.base import BaseDatabaseWrapper

_prepared: WeakKeyDictionary[Any, dict[str, bytes]] = WeakKeyDictionary()  # by its SQL
_numbers = count()


def one(connection: BaseDatabaseWrapper, sql: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """The one row that a statement returns. Errors are those of ``django.db``."""
    if not _is_our_own(connection):
        return _watched(connection, sql, values)
    with connection.wrap_database_errors:
        cursor = cast(Any, connection).Database.Cursor(connection.connection)
        row: tuple[Any, ...] = cursor.execute(sql, values, prepare=True).fetchone()
        return row


def texts(
    connection: BaseDatabaseWrapper, sql: str, values: Sequence[str]
) -> tuple[str | None, ...]:
    """The same for a statement of texts: without a cursor it takes a third of the time."""
    if not _is_our_own(connection):
        return _watched(connection, sql, values)
    with connection.wrap_database_errors:
        return _sent(connection.connection, sql, [value.encode() for value in values])


def _sent(raw: Any, sql: str, values: Sequence[bytes]) -> tuple[str | None, ...]:
    with raw.lock:
        if raw.prepare_threshold is None:
            raw.pgconn.send_query_params(_numbered(sql), values)
        else:
            names = _prepared.setdefault(raw, {})
            if sql not in names:
                name = f"token_allowance_{next(_numbers)}".encode()
                raw.pgconn.send_prepare(name, _numbered(sql))
                _answer(raw)
                names[sql] = name
            raw.pgconn.send_query_prepared(names[sql], values)
        answer = _answer(raw)
    row = [answer.get_value(0, column) for column in range(answer.nfields)]
    return tuple(None if value is None else value.decode() for value in row)


def _answer(raw: Any) -> Any:
    execute, error, fine = _psycopg()
    (answer,) = raw.wait(execute(raw.pgconn))
    if answer.status not in fine:
        raise error(answer)
    return answer


@cache
def _psycopg() -> tuple[Any, Any, frozenset[int]]:
    from psycopg import errors, generators, pq

    fine = frozenset((pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK))
    return generators.execute, errors.error_from_result, fine


@lru_cache(maxsize=100)
def _numbered(sql: str) -> bytes:
    first, *others = sql.split("%s")
    return "".join([first, *(f"${n}{text}" for n, text in enumerate(others, 1))]).encode()


def _is_our_own(connection: BaseDatabaseWrapper) -> bool:
    """Need Django not know of each statement: no log, no wrapper, no transaction to roll back?"""
    if connection.in_atomic_block or connection.execute_wrappers or connection.queries_logged:
        return False
    if cast(Any, connection).Database.__name__ != "psycopg":
        return False
    if connection.connection is None:
        connection.ensure_connection()
    return bool(connection.connection.autocommit)


def _watched(connection: BaseDatabaseWrapper, sql: str, values: Sequence[Any]) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cast(tuple[Any, ...], cursor.fetchone())
