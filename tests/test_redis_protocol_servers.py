"""The interleavings of servers that forget, and of a slot that moves (protocols 6 and 17).

That each test can fail is shown in test_redis_mutations.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from tests import redis_stores
from tests.redis_rules import process, shared
from tests.redis_servers import Cluster, Redis, cluster, until
from tests.stores import NOW, budget, charge, figures, own_pool, request, reserve, rows, spent
from token_allowance.models import Outbox
from token_allowance.stores.base import Outcome
from token_allowance.stores.redis import RedisStore

__all__ = ["cluster", "shared"]

DAY = budget(amount=1000)


@contextmanager
def lagging() -> Iterator[tuple[RedisStore, Redis, Redis]]:
    """A store, its server, and a replica that will not hear of anything more."""
    primary, replica = Redis(), Redis()
    try:
        with redis_stores.fresh(URL=[primary.url, replica.url]) as store:
            charge(store, DAY, cost=100)
            replica.follow(primary)
            yield store, primary, replica
    finally:
        primary.stop()
        replica.stop()


@pytest.fixture
def unblocked(databases: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), own_pool("default"):
        yield


@pytest.mark.parametrize("drained", [True, False], ids=["in the ledger", "only remembered"])
def test_protocol_06_a_lagging_replica_is_promoted(unblocked: None, drained: bool) -> None:
    promote(drained)


def promote(drained: bool) -> None:
    """What the replica lacks comes from the ledger, or from the process that remembers it."""
    with lagging() as (store, primary, replica):
        asked = request(DAY, cost=300)
        reserve(store, asked)
        store.drain()
        epoch = store.asking.names.epoch
        replica.promote()
        assert store.settle(spent(asked, 250)) is Outcome.SETTLED
        if drained:
            store.drain()
        primary.halt()
        assert reserve(store, request(DAY, cost=1)).outcome is Outcome.ADMITTED
        assert store.asking.names.epoch == epoch + 1
        if not drained:
            until(lambda: figures(store, DAY) == [(350, 1)], "nobody told it again", 3)
        assert figures(store, DAY) == [(350, 1)]
        assert rows(store)[asked.id]["cost_micros"] == 250
        assert store.rebuild(NOW) == []


def test_protocol_06_a_server_whose_clock_was_set_back_is_read_on(shared: RedisStore) -> None:
    """Else what it says now would stand before what the ledger has taken over."""
    charge(shared, DAY, cost=100)
    shared.drain()
    ahead = int(datetime.now(UTC).timestamp() * 1000) + 300_000
    Outbox.objects.filter(prefix=shared.prefix).update(watermark=f"{ahead}-0")
    redis_stores.clear(shared)
    with process(shared) as other:
        asked = charge(other, DAY, cost=50)
        assert asked.id in rows(other)
        assert figures(other, DAY) == [(150, 0)]


def test_protocol_06_one_process_recovers_and_the_others_wait(shared: RedisStore) -> None:
    charge(shared, DAY, cost=100)
    shared.drain()
    epoch = shared.asking.names.epoch
    redis_stores.clear(shared)
    calls = [request(DAY, cost=1) for _ in range(8)]
    barrier, outcomes = threading.Barrier(8), []

    def one(asked: Any) -> None:
        with process(shared) as other:
            barrier.wait(20)
            outcomes.append(reserve(other, asked).outcome)

    threads = [threading.Thread(target=one, args=(asked,)) for asked in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert outcomes == [Outcome.ADMITTED] * 8
    with process(shared) as other:
        assert figures(other, DAY) == [(100, 8)]
        reserve(other, request(DAY, cost=1))
        assert other.asking.names.epoch == epoch + 1


def test_protocol_17_calls_wait_while_their_slot_moves(cluster: Cluster, unblocked: None) -> None:
    move(cluster)


def test_protocol_17_a_slot_that_has_moved_is_followed(cluster: Cluster, unblocked: None) -> None:
    moved(cluster)


def moved(cluster: Cluster) -> None:
    """The node that had the keys names the one that has them now."""
    with redis_stores.fresh(URL=cluster.url) as store:
        charge(store, DAY, cost=10)
        slot = cluster.nodes[0].ask("CLUSTER", "KEYSLOT", store.asking.names.marker)
        source = cluster.holder(slot)
        target = next(node for node in cluster.nodes if node is not source)
        asked = request(DAY, cost=10)
        reserve(store, asked)
        cluster.begin_move(slot, target)()
        assert store.settle(spent(asked, 7)) is Outcome.SETTLED
        charge(store, DAY, cost=10)
        assert figures(store, DAY) == [(27, 0)]
        assert store.rebuild(NOW) == []


def move(cluster: Cluster) -> None:
    """New keys find no node until the slot has arrived."""
    with redis_stores.fresh(URL=cluster.url) as store:
        charge(store, DAY, cost=10)
        tag = store.asking.names.marker
        slot = cluster.nodes[0].ask("CLUSTER", "KEYSLOT", tag)
        source = cluster.holder(slot)
        target = next(node for node in cluster.nodes if node is not source)
        finish = cluster.begin_move(slot, target)
        later = threading.Timer(0.5, finish)
        later.start()
        try:
            for _ in range(5):
                charge(store, DAY, cost=10)
        finally:
            later.join(20)
        assert cluster.holder(slot) is target
        charge(store, DAY, cost=10)
        assert figures(store, DAY) == [(70, 0)]
        assert store.rebuild(NOW) == []
