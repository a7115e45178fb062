"""The policy version: one number that rises with every policy write, whoever writes."""

from __future__ import annotations

from django.db.backends.base.base import BaseDatabaseWrapper

SQL = "SELECT coalesce(sum(number), 0) FROM token_allowance_policyversion"


def read(connection: BaseDatabaseWrapper) -> int:
    with connection.cursor() as cursor:
        cursor.execute(SQL)
        return int(cursor.fetchone()[0])
