"""Statements of texts, sent to PostgreSQL without a cursor."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import DataError, OperationalError

from tests.stores import budget, charge, counters, figures, refused_by, request, reserve, tamper
from tests.test_connections import backend, raw
from token_allowance.stores import connections as own_connections
from token_allowance.stores import statements
from token_allowance.stores.base import Outcome
from token_allowance.stores.connections import OwnConnections, run
from token_allowance.stores.database import DatabaseStore

pytestmark = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
ADD = "SELECT (%s::int + %s::int)::text, NULL, %s"
HOSTILE = "% %s $1 ' \" \\ \n é €"


@pytest.fixture
def pool(database: str) -> Iterator[OwnConnections]:
    made = OwnConnections(database, most=3)
    yield made
    made.close()


def added(connection: Any) -> tuple[str | None, ...]:
    return statements.texts(connection, ADD, ["3", "4", HOSTILE])


def test_a_statement_gives_texts_and_takes_any_text(pool: OwnConnections) -> None:
    assert pool.run(added) == ("7", None, HOSTILE)

    def through_a_cursor(connection: Any) -> Any:
        with connection.execute_wrapper(lambda execute, *given: execute(*given)):
            return added(connection)

    assert pool.run(through_a_cursor) == ("7", None, HOSTILE)


def test_it_is_prepared_once_on_a_connection(pool: OwnConnections) -> None:
    def prepared(connection: Any) -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'token_allowance%%'"
            )
            return int(cursor.fetchone()[0])

    pool.run(added)
    pool.run(added)
    assert pool.run(prepared) == 1
    pool.prepares = False
    pool.close()
    assert pool.run(added) == ("7", None, HOSTILE)
    assert pool.run(prepared) == 0


def test_an_error_is_djangos_and_costs_no_connection(pool: OwnConnections) -> None:
    first = pool.run(backend)
    with pytest.raises(DataError) as caught:
        pool.run(lambda connection: statements.texts(connection, ADD, ["3", "four", ""]))
    assert caught.value.__cause__ is not None
    assert getattr(caught.value.__cause__, "sqlstate", "") == "22P02"
    assert pool.run(added) == ("7", None, HOSTILE)
    assert pool.run(backend) == first


def test_what_a_pooler_forgot_is_sent_unprepared(database: str) -> None:
    pool = own_connections.own(database)

    def forget(connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("DEALLOCATE ALL")

    try:
        run(database, added)
        run(database, forget)
        assert run(database, added) == ("7", None, HOSTILE)
        assert not pool.prepares
    finally:
        pool.prepares = True
        pool.close()


def test_a_connection_that_died_while_it_was_kept_is_replaced(pool: OwnConnections) -> None:
    pool.run(added)
    dead = pool.run(backend)
    killer = OwnConnections(pool.alias, most=1)
    killer.run(
        lambda c: statements.texts(c, "SELECT pg_terminate_backend(%s::int)::text", [str(dead)])
    )
    killer.close()
    assert pool.run(added) == ("7", None, HOSTILE)
    assert pool.run(backend) != dead


def test_a_closed_connection_is_an_operational_error(pool: OwnConnections) -> None:
    def close_first(connection: Any) -> Any:
        raw(connection).close()
        return added(connection)

    with pytest.raises(OperationalError):
        pool.run(close_first)


def test_an_interrupt_ends_the_wait_and_the_statement(pool: OwnConnections) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            pool.run(lambda c: statements.texts(c, "SELECT pg_sleep(%s::int)::text", ["20"]))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 15
    assert pool.run(added) == ("7", None, HOSTILE)


def test_a_counter_that_had_room_and_has_none_any_more_refuses_and_keeps_nothing(
    database: str,
) -> None:
    store, day, calls = DatabaseStore(database), budget(amount=100), budget("calls", 100)
    charge(store, day, calls, cost=1)
    tamper(store, day.key, used=95)
    assert refused_by(reserve(store, request(day, calls, cost=10))) == [day]
    assert figures(store, day, calls) == [(95, 0), (1, 0)]
    cheaper = request(day, calls, cost=10, may_degrade=True)
    assert reserve(store, cheaper).outcome is Outcome.DEGRADE
    tamper(store, day.key, used=1)
    assert reserve(store, request(day, calls, cost=10)).outcome is Outcome.ADMITTED
    assert counters(store)[calls.key] == (1, 1)
