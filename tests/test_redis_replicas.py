"""A replica that lags is no place to read from, whatever address a failure has led to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import redis_stores
from tests.redis_servers import Redis
from tests.servers import free_port
from tests.stores import NOW, budget, charge, figures, lose, own_pool, request, reserve
from token_allowance.stores.base import Outcome
from token_allowance.stores.redis import RedisStore, drainage

DAY = budget(amount=1000)


@pytest.fixture
def store(databases, django_db_blocker) -> Iterator[RedisStore]:
    """It may ask a primary and a replica, which has not heard of the last 200."""
    primary, replica = Redis(), Redis()
    try:
        with (
            django_db_blocker.unblock(),
            own_pool("default"),
            redis_stores.fresh(URL=[primary.url, replica.url]) as made,
        ):
            charge(made, DAY, cost=100)
            made.drain()
            replica.follow(primary)
            replica.ask("REPLICAOF", "127.0.0.1", free_port())
            charge(made, DAY, cost=200)
            yield made
    finally:
        primary.stop()
        replica.stop()


def turn_away(store: RedisStore) -> None:
    """As a failure of another thread does."""
    store.wire._next_place()


def test_figures_are_those_of_the_primary(store):
    epoch = store.asking.names.epoch
    turn_away(store)
    assert figures(store, DAY) == [(300, 0)]
    assert store.asking.names.epoch == epoch


def test_a_counter_is_seeded_with_what_the_primary_has_decided(store, monkeypatch):
    drain = drainage.drain

    def turned(store, **given):
        turn_away(store)
        return drain(store, **given)

    monkeypatch.setattr(drainage, "drain", turned)
    lose(store, DAY)
    assert reserve(store, request(DAY, cost=1)).outcome is Outcome.ADMITTED
    assert figures(store, DAY) == [(300, 1)]
    turn_away(store)
    assert store.rebuild(NOW) == []
