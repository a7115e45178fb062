"""Looking into the ledger costs the same however long it is: an index answers."""

from __future__ import annotations

import re
import uuid

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from tests.stores import NOW, budget, request
from token_allowance.limits import Unit, cap_budget
from token_allowance.models import Reservation
from token_allowance.stores import ledger, sqlite
from token_allowance.stores.base import Row


def fill(alias: str) -> None:
    """Calls of many users: in an empty ledger one index is as good as another."""
    Reservation.objects.using(alias).bulk_create(
        Reservation(
            id=uuid.uuid4(), tenant=f"t_{n}", user=f"u_{n}", state="settled", created_at=NOW,
            settled_at=NOW, expires_at=NOW,
        )
        for n in range(500)
    )  # fmt: skip
    connection = connections[alias]
    with connection.cursor() as cursor:
        vacuumed = "VACUUM ANALYZE" if connection.vendor == "postgresql" else "ANALYZE"
        cursor.execute(f"{vacuumed} token_allowance_reservation")


def plans(alias: str, row: Row) -> list[str]:
    """How the database would answer each question about the ledger."""
    connection = connections[alias]
    fill(alias)
    explain = "EXPLAIN"
    budgets = cap_budget("a/b/", Unit.CALLS, 1, since=0), budget(user="u_1"), budget(tenant="acme")
    with CaptureQueriesContext(connection) as asked, connection.cursor() as cursor:
        ledger.find(connection, {"deferred_id": "batch_1"})
        ledger.find(connection, {"tenant": "acme", "idempotency_key": "k"})
        for one in budgets:
            ledger.sums(cursor, connection, one)
        if connection.vendor == "sqlite":
            sqlite._known(cursor, row)
            explain = "EXPLAIN QUERY PLAN"
    questions = [query["sql"] for query in asked.captured_queries]
    found = []
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET enable_seqscan = off")
        for question in questions:
            cursor.execute(f"{explain} {question.replace('%', '%%')}")
            found.append(" ".join(str(line[-1]) for line in cursor.fetchall()))
    return found


def test_no_question_reads_the_whole_ledger(database: str) -> None:
    found = plans(database, request(budget(tenant="acme"), key="k").row)
    assert len(found) > 7
    assert [plan for plan in found if re.search(r"SCAN token|Seq Scan", plan)] == []


@pytest.mark.parametrize("name", ["run", "user", "deferred", "idempotent"])
def test_the_partial_indexes_are_used(database: str, name: str) -> None:
    found = plans(database, request(budget(tenant="acme"), key="k").row)
    assert any(f"allowance_ledger_{name}" in plan for plan in found)
