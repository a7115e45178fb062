"""Connections of our own: few, borrowed for one operation, replaced when dead or too old."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connections

from tests.stores import NAMES, budget, charge
from token_allowance.exceptions import StoreUnavailable
from token_allowance.stores import connections as own_connections
from token_allowance.stores import statements
from token_allowance.stores.connections import OwnConnections, run
from token_allowance.stores.database import DatabaseStore

only_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@pytest.fixture
def pool(database: str) -> Iterator[OwnConnections]:
    made = OwnConnections(database, most=3)
    yield made
    made.close()


def backend(connection: Any) -> int:
    """The server's process for this connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def raw(connection: Any) -> Any:
    connection.ensure_connection()
    return connection.connection


def idle(pool: OwnConnections) -> list[Any]:
    return [borrowed.connection for borrowed in pool._idle]


def test_one_connection_serves_one_operation_after_the_other(pool: OwnConnections) -> None:
    first = pool.run(raw)
    assert pool.run(raw) is first
    assert len(idle(pool)) == 1


def test_as_many_are_kept_as_were_busy_at_once_and_never_more_than_allowed(
    pool: OwnConnections,
) -> None:
    together = threading.Barrier(3)

    def work(connection: Any) -> None:
        raw(connection)
        together.wait(10)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda _: pool.run(work), range(6)))
    assert len(idle(pool)) == 3


def test_a_caller_waits_for_a_connection_and_then_gives_up(
    pool: OwnConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_connections, "TAKE_SECONDS", 0.05)
    pool.most = 1
    pool._begin()

    def nested(connection: Any) -> None:
        pool.run(raw)

    with pytest.raises(OperationalError, match="busy"):
        pool.run(nested)
    pool.run(raw)


def test_a_connection_too_old_or_idle_too_long_is_not_used_again(
    pool: OwnConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pool.run(raw)
    monkeypatch.setattr(own_connections, "IDLE_SECONDS", 0.0)
    time.sleep(0.001)
    second = pool.run(raw)
    assert second is not first
    monkeypatch.setattr(own_connections, "IDLE_SECONDS", 60.0)
    monkeypatch.setattr(own_connections, "MAX_AGE_SECONDS", 0.0)
    time.sleep(0.001)
    assert pool.run(raw) is not second


@only_postgresql
def test_a_connection_that_died_while_idle_is_replaced_and_the_operation_repeated(
    database: str, pool: OwnConnections
) -> None:
    first = pool.run(backend)
    with connections[database].cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [first])
    assert pool.run(backend) != first


@only_postgresql
def test_a_server_that_stays_away_is_reported_after_one_more_try(
    database: str, pool: OwnConnections
) -> None:
    pool.run(raw)
    tried = []

    def killed(connection: Any) -> None:
        tried.append(backend(connection))
        with connections[database].cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [tried[-1]])
        backend(connection)

    with pytest.raises(OperationalError):
        pool.run(killed)
    assert len(set(tried)) == 2
    assert idle(pool) == []


def broken(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM no_such_table")


def test_an_operation_that_fails_leaves_a_connection_that_works_or_none(
    pool: OwnConnections,
) -> None:
    def interrupted(connection: Any) -> None:
        raw(connection)
        raise KeyboardInterrupt

    with pytest.raises(DatabaseError, match="no_such_table"):
        pool.run(broken)
    with pytest.raises(KeyboardInterrupt):
        pool.run(interrupted)
    pool.run(raw)
    assert len(idle(pool)) == 1


def test_a_database_error_becomes_store_unavailable_with_its_cause(database: str) -> None:
    with pytest.raises(StoreUnavailable, match="Nothing was sent") as caught:
        run(database, broken)
    assert "no_such_table" in str(caught.value.__cause__)
    assert "no_such_table" not in str(caught.value)


def test_own_connections_are_copies_in_autocommit_without_the_hosts_pool(
    pool: OwnConnections, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = connections.settings[database]
    options = {**settings["OPTIONS"], "pool": True, "isolation_level": 3}
    with monkeypatch.context() as patch:
        patch.setitem(settings, "OPTIONS", options)
        patch.setitem(settings, "ATOMIC_REQUESTS", True)
        made = pool._make()
    assert made is not connections[database]
    assert made.settings_dict is not settings
    assert not {"pool", "isolation_level"} & made.settings_dict["OPTIONS"].keys()
    assert options["pool"] is True
    assert (made.settings_dict["ATOMIC_REQUESTS"], made.get_autocommit()) == (False, True)
    assert made not in connections.all(initialized_only=True)
    made.close()


def test_a_switch_to_another_database_drops_what_is_kept(
    pool: OwnConnections, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pool.run(raw)
    pool._place = ("another",)
    assert pool.run(raw) is not first
    assert len(idle(pool)) == 1


FORKED = """
import gc, os, sys
import django
django.setup()
from django.conf import settings
from django.db import connections
from token_allowance.stores.connections import own

def number(connection):
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM token_allowance_limit")
        return id(connection.connection), cursor.fetchone()[0]

for alias, name in zip(sys.argv[1::2], sys.argv[2::2]):
    settings.DATABASES[alias]["NAME"] = connections.settings[alias]["NAME"] = name
    before = own(alias).run(number)
    pid = os.fork()
    if pid == 0:
        kept = own(alias)._idle[0].made
        own(alias).run(number)
        gc.collect()
        sys.stderr.flush()
        os._exit(0 if own(alias)._idle[0].made > kept else 1)
    assert os.waitpid(pid, 0)[1] == 0, alias
    assert own(alias).run(number) == before, alias
    own(alias).close()
"""


def test_a_forked_process_leaves_its_parents_connections_alone(databases: None) -> None:
    names = [str(part) for a in NAMES for part in (a, connections[a].settings_dict["NAME"])]
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", FORKED, *names],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_thread_keeps_a_connection_of_djangos_after_using_a_store(database: str) -> None:
    def work() -> list[Any]:
        charge(DatabaseStore(database), budget(), cost=1)
        return [c for c in connections.all(initialized_only=True) if c.connection is not None]

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(work).result() == []


@only_postgresql
def test_what_a_pooler_has_forgotten_is_sent_unprepared_from_then_on(database: str) -> None:
    pool = own_connections.own(database)
    sent: list[bool] = []

    def forgotten_once(connection: Any) -> int:
        sent.append(pool.prepares)
        if pool.prepares:
            statements.one(connection, "EXECUTE never_prepared", [])
        return int(statements.one(connection, "SELECT %s::int", [7])[0])

    try:
        assert run(database, forgotten_once) == 7
        assert sent == [True, False]
        assert pool.run(lambda connection: raw(connection).prepare_threshold) is None
    finally:
        pool.prepares = True
        pool.close()


@only_postgresql
def test_a_statement_that_the_host_watches_goes_through_its_cursor(pool: OwnConnections) -> None:
    seen: list[str] = []

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        seen.append(sql)
        return execute(sql, *rest)

    def watched(connection: Any) -> int:
        with connection.execute_wrapper(note):
            return int(statements.one(connection, "SELECT %s::int", [7])[0])

    assert pool.run(watched) == 7
    assert seen == ["SELECT %s::int"]
