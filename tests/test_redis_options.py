"""Where RedisStore finds its server, and what it says of how the server is set up."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import pytest
from django.core.exceptions import ImproperlyConfigured

from tests import redis_stores
from tests.redis_servers import redis_server
from tests.stores import budget, charge
from token_allowance.conf import ConfigurationError
from token_allowance.stores.redis import RedisStore

__all__ = ["redis_server"]


def test_the_settings_of_a_django_redis_alias_are_used(settings) -> None:
    settings.CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": os.environ["REDIS_URL"],
            "OPTIONS": {"CONNECTION_POOL_KWARGS": {"client_name": "shop", "max_connections": 3}},
        }
    }
    store = RedisStore(CACHE="default")
    try:
        assert b"name=shop" in store.wire.execute("CLIENT", "LIST")
    finally:
        store.wire.close()


def test_an_alias_without_an_address_is_a_mistake_that_is_named(settings) -> None:
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
    with pytest.raises(ImproperlyConfigured, match="'default'"):
        RedisStore(CACHE="default")


def test_an_unknown_option_is_a_mistake_that_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'URI'"):
        RedisStore(URI="redis://127.0.0.1")


def test_of_several_addresses_the_next_is_asked_when_one_is_dead(redis_server) -> None:
    live = urlsplit(redis_server.url)
    with redis_stores.fresh(URL=["redis://127.0.0.1:1/0", live.geturl()]) as store:
        assert store.wire.execute("PING") == b"PONG"
        assert store.wire.execute("PING") == b"PONG"


@pytest.mark.django_db(transaction=True)
def test_what_the_ledger_has_taken_over_does_not_fill_the_stream() -> None:
    with redis_stores.fresh(EVENTS_MOST=10) as store:
        for _ in range(20):
            charge(store, budget(amount=10**6), cost=1)
            store.drain()
        assert store.wire.execute("XLEN", store.asking.names.events) <= 5


def test_what_is_wrong_with_a_server_is_said(redis_server) -> None:
    store = RedisStore(URL=redis_server.url)
    (durability,) = store.check()
    assert "appendonly yes" in durability
    store.wire.execute("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    store.wire.execute("CONFIG", "SET", "appendonly", "yes")
    (eviction,) = store.check()
    assert "allkeys-lru" in eviction
    assert "noeviction" in eviction
    redis_server.stop()
    (silence,) = store.check()
    assert "failed" in silence
