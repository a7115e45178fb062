"""The interleavings of the drain, and of a stream or a memory that is full (protocols 7 and 8).

Most of 7 is in test_outbox. That each test can fail is shown in test_redis_mutations.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests import redis_stores, servers
from tests.redis_rules import Meanwhile, between, process, processes, shared
from tests.stores import NOW, budget, charge, figures, own_pool, request, reserve, rows, spent
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import DeadLetter, HourlySpend
from token_allowance.stores import outbox
from token_allowance.stores.base import Outcome
from token_allowance.stores.redis import RedisStore, drainage

__all__ = ["shared"]

DAY = budget(amount=1000)


class Killed(BaseException):
    """What a killed process does: nothing more."""


def die() -> None:
    raise Killed


def booked(store: RedisStore, calls: int) -> None:
    store.drain()
    assert [row["state"] for row in rows(store).values()] == ["settled"] * calls
    assert sum(hour.calls for hour in HourlySpend.objects.all()) == calls
    assert store.rebuild(NOW) == []


@pytest.mark.parametrize(
    ("module", "name", "before"),
    [
        (drainage, "events", False),
        (outbox, "_set_aside", True),
        (outbox, "_set_aside", False),
        (outbox, "take_over", False),
    ],
    ids=["after reading", "rows written", "before the watermark", "before it trims"],
)
def test_protocol_07_a_drainer_killed_anywhere_loses_and_doubles_nothing(
    shared: RedisStore, module: object, name: str, before: bool
) -> None:
    for _ in range(3):
        charge(shared, DAY, cost=10)  # its beginning and its end are in one batch
    death = between(module, name, die, before=before)
    with process(shared) as killed, death, pytest.raises(Killed):
        killed.drain()
    booked(shared, 3)


def test_protocol_07_two_drainers_take_each_event_once(shared: RedisStore) -> None:
    for _ in range(3):
        charge(shared, DAY, cost=10)
    with processes(shared, 2) as [first, second]:
        other: list[Meanwhile] = []

        def begin() -> None:
            other.append(Meanwhile(lambda: drainage.drain(second)))
            assert other[0].waits(0.3)

        with between(drainage, "events", begin):
            assert drainage.drain(first) == 6
        assert other[0].end() == 0
    booked(shared, 3)


def test_protocol_07_what_the_ledger_has_not_is_not_trimmed(
    shared: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drainage, "KEPT_MILLISECONDS", 0)
    keep_what_waits(shared)


def keep_what_waits(store: RedisStore) -> None:
    charge(store, DAY, cost=10)
    drainage.drain(store)
    for _ in range(200):  # more than one node of the stream
        charge(store, cost=1)
    drainage.trim(store)
    assert drainage.drain(store) == 400


@pytest.mark.parametrize("document", [b"\x00", b'{"tenant":"a\\u0000b"}', b"\xff\xfe", b"["])
def test_protocol_08_a_hostile_event_does_not_stop_the_drain(
    shared: RedisStore, document: bytes
) -> None:
    charge(shared, DAY, cost=10)
    asked = request(cost=1)
    name = shared.asking.names.events
    shared.wire.execute("XADD", name, "*", "i", str(asked.id), "s", "s", "d", document)
    charge(shared, DAY, cost=10)
    booked(shared, 2)
    assert DeadLetter.objects.count() == 1


@pytest.fixture
def small(databases: None, django_db_blocker: Any) -> Iterator[RedisStore]:
    """A store on a server of its own, whose memory a test may fill."""
    server = servers.Redis()
    try:
        unblocked = django_db_blocker.unblock()
        with unblocked, own_pool("default"), redis_stores.fresh(URL=server.url) as store:
            yield store
    finally:
        server.stop()


def test_protocol_08_a_full_memory_refuses_calls_and_settles_those_under_way(
    small: RedisStore,
) -> None:
    asked = request(DAY, cost=100)
    reserve(small, asked)
    for _ in range(2):
        small.wire.execute("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StoreUnavailable):
            reserve(small, request(DAY, cost=1))
        assert small.settle(spent(asked, 80)) in (Outcome.SETTLED, Outcome.REPEAT)
        small.wire.execute("CONFIG", "SET", "maxmemory", 0)
    assert figures(small, DAY) == [(80, 0)]


def test_protocol_08_a_full_stream_refuses_calls_and_settles_those_under_way(
    shared: RedisStore,
) -> None:
    asked = request(DAY, cost=100)
    reserve(shared, asked)
    charge(shared, DAY, cost=1)
    with process(shared, EVENTS_MOST=2) as full:
        with pytest.raises(StoreUnavailable, match="too far behind"):
            reserve(full, request(DAY, cost=1))
        assert full.settle(spent(asked, 80)) is Outcome.SETTLED
    assert figures(shared, DAY) == [(81, 0)]
