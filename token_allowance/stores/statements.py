"""One statement to PostgreSQL by the shortest way: bound and, if it may be, prepared there.

Django's cursor writes values into the text of a statement, which is then parsed and planned anew
each time. On a connection of our own nothing of what it adds is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from django.db.backends.base.base import BaseDatabaseWrapper


def one(connection: BaseDatabaseWrapper, sql: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """The one row that a statement returns. Errors are those of ``django.db``."""
    if _watched(connection) or cast(Any, connection).Database.__name__ != "psycopg":
        with connection.cursor() as cursor:
            cursor.execute(sql, values)
            return cast(tuple[Any, ...], cursor.fetchone())
    if connection.connection is None:
        connection.ensure_connection()
    with connection.wrap_database_errors:
        cursor = cast(Any, connection).Database.Cursor(connection.connection)
        row: tuple[Any, ...] = cursor.execute(sql, values, prepare=True).fetchone()
        return row


def _watched(connection: BaseDatabaseWrapper) -> bool:
    """Must Django know of each statement: a log, a wrapper, a transaction that it may roll back?"""
    return bool(
        connection.in_atomic_block or connection.execute_wrappers or connection.queries_logged
    )
