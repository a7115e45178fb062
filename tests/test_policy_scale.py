"""Fifty thousand limits of single tenants: a reload reads as little as with fifty."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connections

from tests.stores import used
from token_allowance import policy, rules
from token_allowance.limits import Attribution
from token_allowance.models import Limit, LimitIncrease

ACME = Attribution(tenant="t7", user="u")
FAR = dt.datetime(2999, 1, 1, tzinfo=dt.UTC)


class Reads:
    """The statements that read the policy since last asked, and how many rows came back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found = list[int]()
        self.sql = dict[str, list[Any]]()
        original = rules.rows

        def counted(connection: Any, sql: str, values: Any = ()) -> list[Any]:
            rows = original(connection, sql, values)
            self.found.append(len(rows))
            self.sql[sql] = list(values)
            return rows

        monkeypatch.setattr(rules, "rows", counted)

    def taken(self) -> tuple[int, int]:
        statements, rows = len(self.found), sum(self.found)
        self.found.clear()
        return statements, rows


def add_own_limits(alias: str, numbers: range) -> None:
    """A monthly limit of each of these tenants, with more for a while."""
    made = [Limit(tenant=f"t{n}", window="month", unit="tokens", amount=500) for n in numbers]
    Limit.objects.using(alias).bulk_create(made, batch_size=5_000)
    more = [LimitIncrease(limit=limit, amount=5, until=FAR) for limit in made]
    LimitIncrease.objects.using(alias).bulk_create(more, batch_size=5_000)


def reload(alias: str) -> list[tuple[str, int]]:
    """Edit one limit, and find the amounts of a call as the next reserve does."""
    Limit.objects.using(alias).filter(tenant="t9").update(amount=501)
    limits = policy.confirmed().limits_for(ACME)
    return [(limit.tenant, sum(i.amount for i in limit.increases)) for limit in limits]


def plan_of(alias: str, sql: str, values: list[Any]) -> str:
    explain = "EXPLAIN QUERY PLAN" if alias == "sqlite" else "EXPLAIN"
    with connections[alias].cursor() as cursor:
        cursor.execute(f"{explain} {sql}", values)
        return "\n".join(str(row) for row in cursor.fetchall())


def test_a_reload_reads_as_much_with_50000_limits_as_with_50(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Limit.objects.using(database).create(tenant="*", window="day", unit="tokens", amount=50)
    reads = Reads(monkeypatch)
    add_own_limits(database, range(50))
    policy.confirmed()
    reads.taken()
    assert reload(database) == [("*", 0), ("t7", 5)]
    few = reads.taken()
    add_own_limits(database, range(50, 50_000))
    with connections[database].cursor() as cursor:
        cursor.execute("ANALYZE token_allowance_limit")
        cursor.execute("ANALYZE token_allowance_limitincrease")
    policy.confirmed()
    reads.taken()
    reads.sql.clear()
    assert reload(database) == [("*", 0), ("t7", 5)]
    assert reads.taken() == few
    assert few[0] <= 11
    assert few[1] <= 12
    for sql, values in reads.sql.items():  # and none of them looks through the whole table
        scanned = plan_of(database, sql, values)
        for table in ("token_allowance_limit", "token_allowance_limitincrease"):
            whole = f"Seq Scan on {table} " if database == "default" else f"SCAN {table}'"
            assert whole not in scanned or "LIMIT 1" in sql, scanned
    assert [available for _, _, available in used(tenant="t7")] == [50, 505]
