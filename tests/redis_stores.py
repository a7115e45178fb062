"""RedisStore under test: a fresh one on this run's server, and what only a test does to it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.test import override_settings

from token_allowance import conf, keys
from token_allowance.stores.redis import RedisStore


def options() -> dict[str, Any]:
    """OPTIONS of a store with keys of its own on this run's server."""
    return {"URL": os.environ["REDIS_URL"], "PREFIX": f"test-{uuid.uuid4().hex[:12]}"}


@contextmanager
def fresh(**given: Any) -> Iterator[RedisStore]:
    """A store with keys of its own, which are gone afterwards."""
    store = RedisStore(**(options() | given))
    try:
        yield store
    finally:
        clear(store)
        store.wire.close()


@contextmanager
def configured(**given: Any) -> Iterator[dict[str, Any]]:
    """A TOKEN_ALLOWANCE setting that counts in Redis."""
    backend = f"{RedisStore.__module__.rpartition('.')[0]}.{RedisStore.__qualname__}"
    chosen = options() | given
    try:
        yield {"STORE": {"BACKEND": backend, "OPTIONS": chosen}}
    finally:
        with fresh(**chosen):
            pass


@contextmanager
def chosen(store: RedisStore) -> Iterator[None]:
    """What is metered counts in these budgets, as another process of them does."""
    given = options() | {"PREFIX": store.prefix}
    chosen_one = {"BACKEND": "token_allowance.stores.redis.RedisStore", "OPTIONS": given}
    with override_settings(TOKEN_ALLOWANCE={"STORE": chosen_one}):
        try:
            yield
        finally:
            conf.store().wire.close()


def all_keys(store: RedisStore, pattern: str = "*") -> list[bytes]:
    found: list[bytes] = []
    cursor = b"0"
    while True:
        match = f"{{{store.prefix}}}{pattern}"
        cursor, names = store.wire.execute("SCAN", cursor, "MATCH", match, "COUNT", 1000)
        found += names
        if cursor == b"0":
            return found


def clear(store: RedisStore) -> None:
    """Lose everything, as FLUSHALL would."""
    if names := all_keys(store):
        store.wire.execute("DEL", *names)


def counters(store: RedisStore) -> dict[str, tuple[int, int]]:
    """(used, reserved) of the counters that exist, by key."""
    found: dict[str, tuple[int, int]] = {}
    for listing in all_keys(store, f"{store.asking.names.epoch}:o:*"):
        fields = store.wire.execute("HGETALL", listing)
        for name, since in zip(fields[::2], fields[1::2], strict=True):
            key = name.decode()
            used, reserved = store.asking.names.counter(key, int(since))
            if used == reserved:
                found |= slices(store, key, used)
            elif None not in (values := store.wire.execute("MGET", used, reserved)):
                found[key] = (int(values[0]), int(values[1]))
    return found


def slices(store: RedisStore, key: str, name: str) -> dict[str, tuple[int, int]]:
    fields = store.wire.execute("HGETALL", name)
    values = dict(zip((f.decode() for f in fields[::2]), map(int, fields[1::2]), strict=True))
    numbers = {int(field.partition(":")[2]) for field in values if ":" in field}
    found = {
        keys.of_slice(key, n): (values.get(f"u:{n}", 0), values.get(f"r:{n}", 0)) for n in numbers
    }
    return found | {key: (0, 0)} if values else {}


def since(store: RedisStore, key: str) -> int:
    whole = store.asking.names.whole(key)
    return int(store.wire.execute("HGET", store.asking.names.opened(whole), whole))


def lose(store: RedisStore, key: str) -> None:
    """Lose one counter."""
    assert store.wire.execute("DEL", *store.asking.names.counter(key, since(store, key))) > 0


def tamper(store: RedisStore, key: str, figures: dict[str, int]) -> None:
    used, reserved = store.asking.names.counter(key, since(store, key))
    for name, value in figures.items():
        if used == reserved:
            field = f"{name[0]}:{key.rpartition('|')[2]}"
            before = int(store.wire.execute("HGET", used, field) or 0)
            store.wire.execute("HSET", used, field, value)
            store.wire.execute("HINCRBY", used, name[0], value - before)
        else:
            store.wire.execute("SET", used if name == "used" else reserved, value, "KEEPTTL")


def let_pass(store: RedisStore, seconds: float) -> None:
    """Make every lease this much older."""
    leases = store.asking.names.leases
    for id in store.wire.execute("ZRANGE", leases, 0, -1):
        store.wire.execute("ZINCRBY", leases, -int(seconds * 1000), id)


def age_tickets(store: RedisStore, seconds: float) -> None:
    """Make every ticket of a call that waits this much older."""
    for queue in all_keys(store, f"{store.asking.names.epoch}:q:*"):
        fields = store.wire.execute("HGETALL", queue)
        for ticket, until in zip(fields[::2], fields[1::2], strict=True):
            store.wire.execute("HSET", queue, ticket, int(until) - int(seconds * 1000))
