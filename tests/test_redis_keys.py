"""What RedisStore's keys are called, how long they last, and what numbers they hold (C59–C62)."""

from __future__ import annotations

import datetime as dt
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from re import findall

import pytest
from redis.crc import key_slot

from tests import redis_servers, redis_stores
from tests.stores import NOW, budget, charge, counters, figures, lose, own_pool, request, reserve
from tests.stores import spent as spent_by
from tests.test_store_rolling import rolling
from token_allowance.limits import Amounts
from token_allowance.money import MAX_MICROS
from token_allowance.stores.base import Outcome
from token_allowance.stores.redis import RedisStore

IDS = ["42", "a}b", "{x}", "}{", "{", "}{token_allowance}", "{test}:events", "ü}", "a|b"]
HOUR = dt.timedelta(hours=1)


@pytest.fixture
def server(redis_server):
    return redis_server


@pytest.fixture
def store(server, databases, django_db_blocker) -> Iterator[RedisStore]:
    unblocked = django_db_blocker.unblock()
    with unblocked, own_pool("default"), redis_stores.fresh(URL=server.url) as made:
        yield made


def test_c59_one_tag_puts_the_keys_of_a_user_a_tenant_and_all_into_one_slot():
    names = ("ta:user:42:d:2026-11-10", "ta:tenant:7:m:2026-11", "ta:global:m:2026-11")
    assert [key_slot(name.encode()) for name in names] == [6382, 15701, 16033]
    tagged = [f"{{ta}}{name.removeprefix('ta')}".encode() for name in names]
    assert {key_slot(name) for name in tagged} == {14362}


@pytest.mark.parametrize("id", IDS)
def test_c59_no_id_opens_another_tag(store, server, id):
    budgets = [
        budget(user=id), budget("tokens", tenant=id), budget("calls"), rolling(user=id),
    ]  # fmt: skip
    charge(store, *budgets, cost=3, tokens=2, key=id)
    asked = request(*budgets, cost=1, tokens=1)
    assert reserve(store, asked).outcome is Outcome.ADMITTED
    slot = key_slot(f"{{{store.prefix}}}".encode())
    names = server.ask("KEYS", "*")
    assert len(names) > 12
    assert {key_slot(name) for name in names} == {slot}
    assert figures(store, *budgets) == [(3, 1), (2, 1), (1, 1), (3, 1)]


@contextmanager
def monitored(server: redis_servers.Redis) -> Iterator[list[str]]:
    """What the server was asked meanwhile, one line for each command, those of scripts too."""
    lines: list[str] = []
    with (
        socket.create_connection(("127.0.0.1", server.port), 10) as connection,
        connection.makefile("rb") as stream,
    ):
        connection.sendall(b"MONITOR\r\n")
        assert stream.readline() == b"+OK\r\n"
        yield lines
        server.ask("ECHO", "the last")
        while not lines or "the last" not in lines[-1]:
            lines.append(stream.readline().decode())


def words(line: str) -> list[str]:
    return [a.replace('\\"', '"') for a in findall(r'"((?:[^"\\]|\\.)*)"', line)]


def touched(command: list[str]) -> set[str]:
    name, *rest = command
    if name.lower() == "time":
        return set()
    if name.lower() == "mset":
        return set(rest[::2])
    return set(rest if name.lower() == "mget" else rest[:1])


def test_c59_every_key_that_a_script_touches_is_among_its_keys(store, server):
    budgets = [budget(user="u"), budget("tokens", tenant="t"), rolling(user="u")]
    with monitored(server) as lines:
        for key in ("", "k"):
            call = request(*budgets, cost=5, tokens=5, key=key)
            assert reserve(store, call).outcome is Outcome.ADMITTED
            more = replace(call, amounts=Amounts(1, 1, 0))
            assert store.extend(more).outcome is Outcome.EXTENDED
            assert store.settle(spent_by(call, 4, 4)) is Outcome.SETTLED
            assert store.settle(spent_by(call, 3, 3)) is Outcome.CONFLICT
        assert reserve(store, request(*budgets, cost=10**6)).outcome is Outcome.REFUSED
        dead = request(*budgets, cost=5)
        assert reserve(store, dead).outcome is Outcome.ADMITTED
        redis_stores.let_pass(store, 10_000)
        store.expire(NOW, charge=True)
        assert store.settle(spent_by(request(*budgets), 2)) is Outcome.LATE
        lose(store, budgets[0])
        assert reserve(store, request(*budgets, cost=1)).outcome is Outcome.ADMITTED
        store.rebuild(NOW)
        store.drain()
    declared: set[str] = set()
    seen: dict[str, set[str]] = {}
    for line in lines:
        command = words(line)
        if command[0].lower() in ("eval", "evalsha"):
            declared = set(command[3 : 3 + int(command[2])])
        elif " lua] " in line:
            seen.setdefault(command[0].lower(), set()).update(touched(command))
            assert touched(command) <= declared, line
    assert {"mget", "xadd", "incrby", "hincrby", "zadd", "zrem", "set", "del"} <= set(seen)


# C60: numbers


def test_c60_thirty_cents_hold_ten_and_twenty_and_not_a_millionth_more(store):
    day = budget(amount=300_000)
    for cost in (100_000, 200_000):
        assert reserve(store, request(day, cost=cost)).outcome is Outcome.ADMITTED
    assert reserve(store, request(day, cost=1)).outcome is Outcome.REFUSED
    assert figures(store, day) == [(0, 300_000)]


@pytest.mark.parametrize("make", [budget, rolling], ids=["day", "rolling"])
def test_c60_counters_are_exact_up_to_the_largest_limit(store, make):
    day = make(amount=MAX_MICROS)
    charge(store, day, cost=MAX_MICROS - 2)
    assert reserve(store, request(day, cost=3)).outcome is Outcome.REFUSED
    last = request(day, cost=1)
    assert reserve(store, last).outcome is Outcome.ADMITTED
    assert figures(store, day) == [(MAX_MICROS - 2, 1)]
    assert reserve(store, request(day, cost=2)).outcome is Outcome.REFUSED
    assert reserve(store, request(day, cost=1)).outcome is Outcome.ADMITTED
    assert figures(store, day) == [(MAX_MICROS - 2, 2)]


def test_c60_a_counter_beyond_two_to_the_power_of_53_loses_no_millionth(store):
    day = budget(amount=MAX_MICROS)
    calls = [request(day, cost=1) for _ in range(3)]
    for call in calls:
        assert reserve(store, call).outcome is Outcome.ADMITTED
    for call, cost in zip(calls, (MAX_MICROS, 1, 1), strict=True):
        store.settle(spent_by(call, cost))
    assert figures(store, day) == [(9_007_199_254_740_993, 0)]
    assert reserve(store, request(day, cost=1)).outcome is Outcome.REFUSED
    assert store.rebuild(NOW) == []


# C61 and C62: what is lost, and what lasts


def test_c61_a_counter_that_was_deleted_is_seeded_within_the_decision(store):
    day = budget(amount=30_000_000)
    charge(store, day, cost=29_500_000)
    lose(store, day)
    assert reserve(store, request(day, cost=1_000_000)).outcome is Outcome.REFUSED
    assert reserve(store, request(day, cost=400_000)).outcome is Outcome.ADMITTED
    assert figures(store, day) == [(29_500_000, 400_000)]


def test_c61_counters_that_a_full_server_has_evicted_open_no_limit(store, server):
    days = [budget(amount=100, user=f"u{n}") for n in range(40)]
    for day in days:
        charge(store, day, cost=90)
    store.drain()
    limit = int(server.facts("memory")["used_memory"]) - 6_000
    server.ask("CONFIG", "SET", "maxmemory-policy", "volatile-random")
    server.ask("CONFIG", "SET", "maxmemory", limit)
    redis_servers.until(lambda: len(counters(store)) < 40, "nothing was evicted")
    server.ask("CONFIG", "SET", "maxmemory", 0)
    for day in days:
        assert reserve(store, request(day, cost=20)).outcome is Outcome.REFUSED
        assert reserve(store, request(day, cost=10)).outcome is Outcome.ADMITTED
    assert figures(store, *days) == [(90, 10)] * 40


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "volatile-ttl"])
def test_c61_a_server_that_may_evict_counters_is_warned_of(store, server, policy):
    server.ask("CONFIG", "SET", "maxmemory-policy", policy)
    assert any(policy in sentence for sentence in store.check())
    server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert not any("evict" in sentence for sentence in store.check())


def test_c62_thirty_tokens_an_hour_for_two_days_are_never_refused(store):
    for hour in range(48):
        now = NOW.replace(hour=0, minute=0) + hour * HOUR
        day = budget("tokens", 1000, now=now)
        charge(store, day, tokens=30, at=now)
        assert figures(store, day) == [(30 * (hour % 24 + 1), 0)]


def test_c62_a_counter_lasts_until_its_window_has_ended_however_often_it_is_used(store, server):
    day = budget("tokens", 1000, user="u")
    charge(store, day, tokens=30)

    def ends() -> dict[bytes, int]:
        names = [n for n in redis_stores.all_keys(store) if b":c:" in n or b":o:" in n]
        return {name: server.ask("PEXPIRETIME", name) for name in names}

    before = ends()
    assert len(before) == 3
    assert min(before.values()) > 0
    time.sleep(0.05)
    charge(store, day, tokens=30, at=NOW + 2 * HOUR)
    reserve(store, request(day, tokens=30, at=NOW + 3 * HOUR))
    assert ends() == before
