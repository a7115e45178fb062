"""The contract of stores on Valkey and on a Cluster, and a slot that moves under load."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from inspect import signature
from typing import Any

import pytest
from redis.crc import key_slot

from tests import redis_stores, test_store_contract, test_store_repeats, test_store_seeding
from tests.stores import NOW, budget, charge, figures, own_pool, request, reserve, spent
from token_allowance.exceptions import StoreUnavailable
from token_allowance.stores.base import Outcome
from token_allowance.stores.redis import RedisStore

DAY = budget(amount=1000)
USER = budget("tokens", 1000, user="u1")


@pytest.fixture(params=["valkey", "cluster"])
def store(request, databases, django_db_blocker) -> Iterator[RedisStore]:
    server = request.getfixturevalue(request.param)
    unblocked = django_db_blocker.unblock()
    with unblocked, own_pool("default"), redis_stores.fresh(URL=server.url) as made:
        yield made


def contract(*modules: Any) -> dict[str, Any]:
    """The tests that ask for a store and nothing else: here they run on the stores above."""
    return {
        name: test
        for module in modules
        for name, test in vars(module).items()
        if name.startswith("test_") and list(signature(test).parameters) == ["store"]
    }


globals().update(contract(test_store_contract, test_store_repeats, test_store_seeding))


@pytest.fixture
def moving(cluster, databases, django_db_blocker) -> Iterator[tuple[RedisStore, Any]]:
    """A store in the Cluster, and what begins to move its slot to another node."""
    unblocked = django_db_blocker.unblock()
    with unblocked, own_pool("default"), redis_stores.fresh(URL=cluster.url) as made:
        slot = key_slot(f"{{{made.prefix}}}".encode())
        source = cluster.holder(slot)
        target = next(node for node in cluster.nodes if node is not source)
        charge(made, DAY, USER, cost=1, tokens=1)
        yield made, lambda: cluster.begin_move(slot, target)


def test_a_slot_that_moves_delays_calls_and_loses_nothing(moving):
    store, begin = moving
    call = request(DAY, USER, cost=10, tokens=10)
    assert reserve(store, call).outcome is Outcome.ADMITTED
    finish = begin()
    timer = threading.Timer(0.3, finish)
    timer.start()
    new = request(DAY, USER, budget(amount=50, tenant="new"), cost=5, tokens=5)
    assert reserve(store, new).outcome is Outcome.ADMITTED
    timer.join(10)
    assert store.settle(spent(call, 7, 7)) is Outcome.SETTLED
    assert store.settle(spent(new, 5, 5)) is Outcome.SETTLED
    assert figures(store, DAY, USER) == [(13, 0), (13, 0)]
    store.drain()
    assert store.rebuild(NOW) == []


def test_a_slot_that_stays_on_its_way_follows_the_fail_mode(moving):
    store, begin = moving
    finish = begin()
    try:
        new = request(DAY, budget(amount=50, user="newer"), cost=5)
        with pytest.raises(StoreUnavailable, match=r"Ask|TryAgain"):
            reserve(store, new)
    finally:
        finish()
    assert figures(store, DAY) == [(1, 0)]
    assert reserve(store, new).outcome is Outcome.ADMITTED
    assert figures(store, DAY) == [(1, 5)]
