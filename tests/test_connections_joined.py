"""Whose connection a store uses inside its caller's transaction, and in test runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from django.db import DatabaseError, connections, transaction
from django.test import TestCase, TransactionTestCase

from tests.stores import budget, charge, figures, request, reserve, rows, spent
from token_allowance.models import Reservation
from token_allowance.stores import connections as own_connections
from token_allowance.stores.base import Outcome
from token_allowance.stores.connections import own
from token_allowance.stores.database import DatabaseStore

ALIASES = ("default", "sqlite")
only_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
only_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


class Undone(Exception):
    pass


@contextmanager
def undone(alias: str) -> Iterator[None]:
    """A transaction that is rolled back by an exception at its end."""
    with suppress(Undone), transaction.atomic(using=alias):
        yield
        raise Undone


@only_postgresql
def test_a_charge_outlives_the_rollback_of_the_callers_transaction(database: str) -> None:
    store, day = DatabaseStore(database), budget(amount=100)
    with undone(database):
        charge(store, day, cost=30)
    assert figures(store, day) == [(30, 0)]


@only_postgresql
def test_a_call_can_be_settled_while_the_callers_transaction_is_broken(database: str) -> None:
    store, day = DatabaseStore(database), budget(amount=100)
    asked = request(day, cost=30)
    with transaction.atomic(using=database):
        reserve(store, asked)
        with pytest.raises(DatabaseError), connections[database].cursor() as cursor:
            cursor.execute("SELECT * FROM no_such_table")
        assert store.settle(spent(asked, 20)) is Outcome.SETTLED
        transaction.set_rollback(True, using=database)
    assert figures(store, day) == [(20, 0)]


@only_sqlite
def test_sqlite_joins_a_callers_open_transaction_and_shares_its_fate(database: str) -> None:
    """A connection of our own would wait for the lock that the caller holds (protocol 13)."""
    store, day = DatabaseStore(database), budget(amount=100)
    with transaction.atomic(using=database):
        charge(store, day, cost=30)
    with undone(database):
        charge(store, day, cost=50)
        assert figures(store, day) == [(80, 0)]
        assert len(rows(store)) == 2
    assert figures(store, day) == [(30, 0)]
    assert len(rows(store)) == 1
    charge(store, day, cost=70)


@only_sqlite
def test_an_error_inside_a_joined_transaction_leaves_the_callers_work_alone(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, day = DatabaseStore(database), budget(amount=100)
    with transaction.atomic(using=database):
        charge(store, day, cost=30)
        monkeypatch.setattr("token_allowance.stores.sqlite._insert", raise_undone)
        with pytest.raises(Undone):
            reserve(store, request(day, cost=5))
    assert figures(store, day) == [(30, 0)]


def raise_undone(*_: object) -> None:
    raise Undone


def assert_empty_and_charge(alias: str) -> None:
    """Does this test see what another one has charged?"""
    store, day = DatabaseStore(alias), budget(amount=100)
    assert Reservation.objects.using(alias).count() == 0
    assert figures(store, day) == [(0, 0)]
    charge(store, day, cost=100)
    reserve(store, request(day, cost=0))
    assert Reservation.objects.using(alias).count() == 2
    assert store.rebuild(request(day).now) == []
    assert own(alias)._idle == []


@pytest.mark.django_db(databases=ALIASES)
@pytest.mark.parametrize("alias", ALIASES)
@pytest.mark.parametrize("turn", [1, 2])
def test_a_test_in_a_transaction_leaks_nothing_into_the_next(alias: str, turn: int) -> None:
    assert own_connections.testcase_connection(alias) is connections[alias]
    assert_empty_and_charge(alias)


@pytest.mark.django_db(databases=ALIASES)
@pytest.mark.parametrize("alias", ALIASES)
def test_a_transaction_inside_a_test_can_be_rolled_back_with_its_charges(alias: str) -> None:
    """In production PostgreSQL keeps the charge; here the test's own connection is used."""
    store, day = DatabaseStore(alias), budget(amount=100)
    with undone(alias):
        charge(store, day, cost=30)
    assert figures(store, day) == [(0, 0)]


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.parametrize("alias", ALIASES)
def test_a_test_without_a_transaction_uses_own_connections_and_keeps_none(alias: str) -> None:
    assert own_connections.in_tests()
    assert own_connections.testcase_connection(alias) is None
    assert_empty_and_charge(alias)
    if connections[alias].vendor == "postgresql":
        assert other_sessions(alias) == 0


def other_sessions(alias: str) -> int:
    """The server's sessions beside this one; one that was closed ends a moment later."""
    deadline = time.monotonic() + 5
    with connections[alias].cursor() as cursor:
        while True:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            (count,) = cursor.fetchone()
            if not count or time.monotonic() > deadline:
                return int(count)
            time.sleep(0.01)


class InDjangosTestCase(TestCase):
    databases: set[str] = {*ALIASES}

    def test_one(self) -> None:
        for alias in ALIASES:
            assert_empty_and_charge(alias)

    def test_two(self) -> None:
        for alias in ALIASES:
            assert_empty_and_charge(alias)


class InDjangosTransactionTestCase(TransactionTestCase):
    databases: set[str] = {*ALIASES}

    def test_one(self) -> None:
        for alias in ALIASES:
            assert_empty_and_charge(alias)
