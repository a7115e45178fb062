"""Connections of our own to the host's database, borrowed for one operation.

They are copies of the host's alias, in autocommit, never entered in ``connections.databases``: a
request that is rolled back keeps its charge, and nothing is held while a model answers (case C79).
Where an own connection would wait for its caller for ever, the caller's is used: inside a Django
TestCase, and on SQLite inside an open transaction.
"""

from __future__ import annotations

import copy
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast
from uuid import UUID

from django.db import Error, InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from token_allowance import blocking
from token_allowance.exceptions import StoreUnavailable

T = TypeVar("T")
RETRIED = ("40P01", "40001")  # deadlock, serialization failure: the whole operation is repeated
#: A pooler before the server does not keep statements, or a migration has changed what they return.
FORGOTTEN = ("26000", "42P05", "0A000")
TRIES = 5
MOST = {"sqlite": 1}  # one writer at a time: waiting in the process is fairer than in the file
TAKE_SECONDS = 30
MAX_AGE_SECONDS = 300.0
IDLE_SECONDS = 60.0

_pools: dict[str, OwnConnections] = {}
_vendors: dict[str, str] = {}  # by engine
_inherited: list[object] = []  # a parent's connections: to collect them would be to close them


def run(alias: str, operation: Callable[[BaseDatabaseWrapper], T]) -> T:
    """Run one operation that is safe to repeat; a database error becomes StoreUnavailable."""
    blocking.check()
    for tries_left in reversed(range(TRIES)):
        try:
            joined = testcase_connection(alias) or open_transaction(alias)
            return operation(joined) if joined else own(alias).run(operation)
        except Error as error:
            state = getattr(error.__cause__, "sqlstate", None)
            if state in FORGOTTEN and tries_left and own(alias).prepares:
                own(alias).forget()
                continue
            if state in RETRIED and tries_left:
                continue
            raise StoreUnavailable(
                f"The budget store's database failed: {type(error).__name__}. "
                "Nothing was sent to a model."
            ) from error
    raise AssertionError("unreachable")


def vendor_of(alias: str) -> str:
    """Of the database, without asking Django for this thread's connection each time."""
    engine = connections.settings[alias]["ENGINE"]
    vendor = _vendors.get(engine)
    if vendor is None:
        vendor = _vendors[engine] = connections[alias].vendor
    return vendor


def own(alias: str) -> OwnConnections:
    """The pool of this process for one database alias."""
    pool = _pools.get(alias)
    if pool is None:  # of threads that get here at once, all take what the first has put down
        made = OwnConnections(alias, most=MOST.get(connections[alias].vendor, 16))
        pool = _pools.setdefault(alias, made)
    return pool


class Borrowed:
    """One connection in the pool and when it was made and given back."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.made = self.idle_since = time.monotonic()

    def stale(self, now: float) -> bool:
        return now - self.made > MAX_AGE_SECONDS or now - self.idle_since > IDLE_SECONDS

    def usable(self) -> bool:
        try:
            return self.connection.connection is not None and bool(self.connection.is_usable())
        except Exception:
            return False

    def close(self) -> None:
        with suppress(Exception):
            self.connection.close()


class OwnConnections:
    """A small process-wide pool. Dropped after fork; emptied when the database's name changes."""

    def __init__(self, alias: str, *, most: int) -> None:
        self.alias = alias
        self.most = most
        self.prepares = True  # may statements be prepared, where the host does not say?
        self._begin()

    def _begin(self) -> None:
        self._idle: list[Borrowed] = []
        self._place: tuple[object, ...] = ()
        self._lock = threading.Lock()
        self._places: queue.SimpleQueue[None] = queue.SimpleQueue()  # quicker than a semaphore
        for _ in range(self.most):
            self._places.put(None)
        self._pid = os.getpid()  # last: a thread that sees it must find nothing of the parent's

    def run(self, operation: Callable[[BaseDatabaseWrapper], T]) -> T:
        """Run an operation that may be repeated: once more if a kept connection proved dead."""
        while True:
            if self._pid != os.getpid():
                _inherited.append(self._idle)
                self._begin()
            places = self._places
            try:
                places.get(timeout=TAKE_SECONDS)
            except queue.Empty:
                busy = f"all {self.most} connections of the budget store are busy"
                raise OperationalError(busy) from None
            try:
                borrowed, kept = self._take()
                try:
                    return operation(borrowed.connection)
                except (OperationalError, InterfaceError):
                    if not kept or borrowed.usable():  # a lock timeout is an OperationalError too
                        raise
                finally:
                    self._give(borrowed)
            finally:
                places.put(None)
            self.close()

    def _take(self) -> tuple[Borrowed, bool]:
        settings = connections.settings[self.alias]
        place = tuple(settings[key] for key in ("NAME", "HOST", "PORT", "USER"))
        now = time.monotonic()
        dropped: list[Borrowed] = []
        found: Borrowed | None = None
        with self._lock:
            if place != self._place:  # a test runner has switched to its own database
                dropped, self._idle, self._place = self._idle, [], place
            while self._idle and found is None:
                borrowed = self._idle.pop()
                if borrowed.stale(now):
                    dropped.append(borrowed)
                else:
                    found = borrowed
        for borrowed in dropped:
            borrowed.close()
        return (found, True) if found else (Borrowed(self._make()), False)

    def _make(self) -> BaseDatabaseWrapper:
        """A copy of the host's connection with a private settings dict.

        Without its pool: Django keys pools by alias, so the copy would draw from the host's.
        """
        original = connections[self.alias]
        settings = copy.deepcopy(connections.settings[self.alias])
        settings.update(
            ATOMIC_REQUESTS=False, AUTOCOMMIT=True, CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=False
        )
        for option in ("pool", "isolation_level"):
            settings["OPTIONS"].pop(option, None)
        if original.vendor == "postgresql" and cast(Any, original).Database.__name__ == "psycopg":
            pooled = not self.prepares or settings.get("DISABLE_SERVER_SIDE_CURSORS")
            settings["OPTIONS"].setdefault("prepare_threshold", None if pooled else 5)
        connection = type(original)(settings, self.alias)
        connection.inc_thread_sharing()
        if connection.vendor == "sqlite":
            _prepare_sqlite(connection)
        return connection

    def _give(self, borrowed: Borrowed) -> None:
        borrowed.idle_since = time.monotonic()
        if self._clean(borrowed):
            with self._lock:
                if not in_tests() and len(self._idle) < self.most:
                    self._idle.append(borrowed)
                    return
        borrowed.close()

    @staticmethod
    def _clean(borrowed: Borrowed) -> bool:
        connection = borrowed.connection
        return (
            connection.connection is not None
            and not connection.errors_occurred
            and not connection.in_atomic_block
        )

    def forget(self) -> None:
        """From now on prepare nothing: what was prepared is not there when it is needed."""
        self.prepares = False
        self.close()

    def close(self) -> None:
        """Close the connections nobody has borrowed."""
        with self._lock:
            idle, self._idle = self._idle, []
        for borrowed in idle:
            borrowed.close()


def _prepare_sqlite(connection: BaseDatabaseWrapper) -> None:
    """WAL lets readers go on while one writes; a call waits for its turn rather than failing."""
    connection.settings_dict["OPTIONS"].setdefault("timeout", TAKE_SECONDS)
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=NORMAL")


def written_id(connection: BaseDatabaseWrapper, id: UUID) -> UUID | str:
    """A UUID as a statement on this database takes it."""
    return id if connection.features.has_native_uuid_field else id.hex


def in_tests() -> bool:
    """Has a Django test run been set up? It must find no idle connection at its teardown."""
    utils = sys.modules.get("django.test.utils")  # not imported in production
    return utils is not None and hasattr(utils._TestState, "saved_data")


def testcase_connection(alias: str) -> BaseDatabaseWrapper | None:
    """The connection whose transaction a Django TestCase will roll back, if we are inside one."""
    if not in_tests():
        return None
    connection = connections[alias]
    blocks = connection.atomic_blocks
    if blocks and getattr(blocks[0], "_from_testcase", False):
        return connection
    return None


def inside_testcase() -> bool:
    """Is this thread inside a Django TestCase, on any database?"""
    return any(testcase_connection(alias) is not None for alias in connections)


def open_transaction(alias: str) -> BaseDatabaseWrapper | None:
    """SQLite: the caller's connection inside its open transaction, or to its in-memory database.

    A charge made there is rolled back with the transaction: a check warns of ATOMIC_REQUESTS.
    """
    if vendor_of(alias) != "sqlite":
        return None
    connection = connections[alias]
    in_memory = cast(Any, connection).is_in_memory_db()
    return connection if in_memory or connection.in_atomic_block else None
