"""Draining: the command, its loop, the task, and what operators are told of the ledger's delay."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command

from tests import redis_stores
from tests.stores import own_pool, spend
from token_allowance import conf, entries, tasks
from token_allowance.exceptions import StoreUnavailable
from token_allowance.management.subcommands import drain
from token_allowance.models import DeadLetter, HourlySpend, PendingSettlement, Price, Reservation
from token_allowance.stores import events
from token_allowance.stores.redis import RedisStore, drainage


@pytest.fixture
def store(databases: None, django_db_blocker: Any, settings: LazySettings) -> Iterator[RedisStore]:
    """Redis in front of the default database, as the settings say."""
    with (
        django_db_blocker.unblock(),
        own_pool("default"),
        redis_stores.configured() as configuration,
    ):
        settings.TOKEN_ALLOWANCE = configuration
        made = conf.store()
        yield made
        made.wire.close()


def run(*words: str) -> str:
    out = StringIO()
    call_command("allowance", *words, stdout=out)
    return out.getvalue()


def test_drain_writes_the_ledger_and_says_how_much(store):
    store.drain()
    spend(5, tenant="acme")
    assert not Reservation.objects.exists()
    assert "drain: 2 events written into the ledger." in run("drain")
    assert Reservation.objects.get().tenant == "acme"
    assert HourlySpend.objects.get().input_tokens == 5
    assert "drain: 0 events written" in run("drain")


@pytest.mark.django_db
def test_there_is_nothing_to_drain_where_the_store_is_the_ledgers_database():
    assert run("drain") == "drain: DatabaseStore writes the ledger itself.\n"
    assert tasks.drain() == 0
    assert "Ledger" not in run("status")


def test_the_task_drains(store):
    spend(5)
    assert tasks.drain() >= 2
    assert Reservation.objects.get().state == "settled"


def test_the_recurring_jobs_drain_too(store):
    spend(5)
    assert "written into the ledger.\nexpire: 0 reservations" in run("jobs")
    assert Reservation.objects.get().state == "settled"


def test_a_full_batch_with_an_empty_event_in_it_is_not_the_end(store, monkeypatch):
    monkeypatch.setattr(drainage, "BATCH", 2)
    store.drain()
    nothing = ("i", "-", "s", events.NOTHING, "d", "{}")
    store.wire.execute("XADD", store.asking.names.events, "*", *nothing)
    for _ in range(3):
        spend(5)
    assert store.drain() == 7
    assert Reservation.objects.filter(state="settled").count() == 3


def test_what_somebody_else_wrote_into_the_stream_is_set_aside(store):
    store.drain()
    store.wire.execute("XADD", store.asking.names.events, "*", b"\xff", b"\xfe")
    store.wire.execute("XADD", store.asking.names.events, "*", "s", b"\xff", "d", b"\x00")
    spend(5)
    assert store.drain() == 4
    assert Reservation.objects.get().state == "settled"
    assert DeadLetter.objects.count() == 2


def test_the_ledger_is_behind_while_events_wait(store):
    store.drain()
    assert store.behind_seconds() == 0
    spend(5)
    assert 0 <= store.behind_seconds() < 60
    store.drain()
    past = int(store.wire.execute("TIME")[0]) - 3600
    store.wire.execute("DEL", store.asking.names.events)
    store.wire.execute("XADD", store.asking.names.events, f"{past * 1000}-0", "s", "m")
    assert store.behind_seconds() == 0  # it has been taken over, by its id
    own = f"{store.prefix}-other"
    other = RedisStore(URL=os.environ["REDIS_URL"], PREFIX=own)
    other.wire.execute("XADD", other.asking.names.events, f"{past * 1000}-0", "s", "m")
    try:
        assert other.behind_seconds() == pytest.approx(3600, abs=60)
    finally:
        redis_stores.clear(other)
        other.wire.close()


class Fake:
    """A store that is this far behind."""

    def __init__(self, behind: float | None = 0.0, *drained: int | Exception) -> None:
        self.behind, self.drained, self.rounds = behind, list(drained), 0

    def behind_seconds(self) -> float | None:
        return self.behind

    def drain(self) -> int:
        self.rounds += 1
        found = self.drained.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def usage(self, budgets: Any) -> list[Any]:
        return []

    def check(self) -> list[str]:
        return []


def behind(monkeypatch: pytest.MonkeyPatch, store: Any) -> None:
    monkeypatch.setattr(conf, "store", lambda: store)


class Pauses(threading.Event):
    """An event that notes for how long it was waited for, and is set after so many times."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.seen = most, list[float]()

    def wait(self, timeout: float | None = None) -> bool:
        self.seen.append(timeout or 0)
        if len(self.seen) == self.most:
            self.set()
        return self.is_set()


@pytest.mark.django_db
def test_the_loop_asks_a_store_that_is_down_ever_more_rarely(monkeypatch):
    down = StoreUnavailable("Redis failed.")
    behind(monkeypatch, Fake(0.0, 3, *[down] * 6, 0, 1))
    pauses, out = Pauses(9), StringIO()
    drain.loop(SimpleNamespace(write=lambda text: out.write(f"{text}\n"), flush=int), 1.0, pauses)
    assert pauses.seen == [1, 2, 4, 8, 16, 30, 30, 1, 1]
    assert out.getvalue().splitlines() == [
        "drain: 3 events written into the ledger.",
        *["drain: Redis failed."] * 6,
        "drain: 1 event written into the ledger.",
    ]


@pytest.mark.django_db
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_loop_ends_after_the_round_in_which_it_is_told_to(monkeypatch, number):
    class Killing(Fake):
        def drain(self) -> int:
            os.kill(os.getpid(), number)
            return super().drain()

    store = Killing(0.0, 7)
    behind(monkeypatch, store)
    before = signal.getsignal(number)
    assert run("drain", "--loop", "--every", "20") == "drain: 7 events written into the ledger.\n"
    assert (store.rounds, signal.getsignal(number)) == (1, before)


@pytest.mark.django_db
def test_a_loop_in_a_thread_is_ended_by_its_event():
    found = []

    def work() -> None:
        with drain.told_to_end() as end:
            found.append(end.is_set())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


@pytest.mark.django_db
def test_status_says_how_far_the_ledger_is_behind(monkeypatch):
    PendingSettlement.objects.create(id=entries.new_id(), document={})
    behind(monkeypatch, Fake(1234.56))
    line = (
        "Ledger: 1,234.6 seconds behind the store, events set aside: 0, unapplied settlements: 1\n"
    )
    assert line in run("status")


@pytest.mark.django_db
def test_status_says_that_a_store_cannot_be_asked(monkeypatch):
    class Down(Fake):
        def behind_seconds(self) -> float | None:
            raise StoreUnavailable("Redis failed.")

    behind(monkeypatch, Down())
    assert "Ledger: the store cannot be asked: Redis failed.\n" in run("status")


@pytest.mark.django_db
def test_doctor_looks_after_the_ledger(monkeypatch):
    Price.objects.create(provider="acme", model="m", input_mtok=1, output_mtok=1)
    behind(monkeypatch, Fake(59.0))
    assert "ok       The ledger is 59.0 seconds behind the store." in run("doctor")
    PendingSettlement.objects.create(id=entries.new_id(), document={})
    assert "warning  Settlements that the store could not be told yet: 1." in run("doctor")
    DeadLetter.objects.create(prefix="p", event_id="1-0", payload=b"", error="")
    behind(monkeypatch, Fake(61.0))
    out = StringIO()
    with pytest.raises(CommandError, match="2 problems found"):
        call_command("allowance", "doctor", stdout=out)
    assert "problem  The ledger is 61 seconds behind the store: run manage.py" in out.getvalue()
    assert "written into the ledger: 1 dead letters." in out.getvalue()
