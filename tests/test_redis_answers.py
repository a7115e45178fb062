"""Answers of Redis that are lost or late, scripts it has forgotten, keys that are not what they
should be: nothing is counted twice, and nothing stays held."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter as Tally
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from tests import redis_servers, redis_stores
from tests.fault_proxy import CUT_AFTER, CUT_BEFORE, SWALLOW, Fault, Proxy
from tests.redis_labs import SCRIPTS, TIMEOUT_SECONDS
from tests.stores import (
    NOW,
    budget,
    charge,
    figures,
    own_pool,
    request,
    reserve,
    rows,
    spent,
    unspent,
    version,
)
from token_allowance.exceptions import StoreUnavailable
from token_allowance.limits import Amounts
from token_allowance.stores.base import Outcome, Request
from token_allowance.stores.redis import RedisStore, wire

DAY = budget(amount=1000)
USER = budget("tokens", 1000, user="u1")
BOTH = (DAY, USER)


@dataclass
class Faulty:
    store: RedisStore
    proxy: Proxy
    server: redis_servers.Redis

    def dump(self) -> dict[bytes, bytes]:
        passing = (b":lease", b":gate", b":hold")
        names = [key for key in redis_stores.all_keys(self.store) if not key.endswith(passing)]
        return {name: self.server.ask("DUMP", name) for name in sorted(names)}


@pytest.fixture
def lab(redis_server, databases, django_db_blocker) -> Iterator[Faulty]:
    with (
        django_db_blocker.unblock(),
        own_pool("default"),
        Proxy(redis_server.port, *SCRIPTS) as proxy,
        redis_stores.fresh(URL=proxy.url, TIMEOUT_SECONDS=TIMEOUT_SECONDS) as store,
    ):
        charge(store, *BOTH, cost=1, tokens=1)
        try:
            yield Faulty(store, proxy, redis_server)
        finally:
            proxy.heal()
            store.wire.breaker.succeeded()


def ask(cost: int = 80, **given):
    return request(*BOTH, cost=cost, tokens=cost, **given)


def current(store: RedisStore, call: Request) -> Request:
    return replace(call, version=version(store))


def balanced(store: RedisStore, used: int, reserved: int) -> None:
    assert figures(store, *BOTH) == [(used, reserved)] * 2
    assert store.rebuild(NOW) == []
    assert figures(store, *BOTH) == [(used, reserved)] * 2


# Lost answers


@pytest.mark.parametrize("fault", [CUT_AFTER, CUT_BEFORE], ids=["executed", "not executed"])
def test_a_connection_that_ends_instead_of_an_answer_is_asked_again_on_another(lab, fault):
    call = ask()
    lab.proxy.fault(fault, "reserve")
    assert reserve(lab.store, call).outcome is Outcome.ADMITTED
    balanced(lab.store, 1, 80)
    lab.proxy.fault(fault, "extend")
    more = replace(call, amounts=Amounts(5, 5, 0))
    assert lab.store.extend(more).outcome is Outcome.EXTENDED
    balanced(lab.store, 1, 85)
    lab.proxy.fault(fault, "settle")
    settled = lab.store.settle(spent(call, 70, 70))
    assert settled in (Outcome.SETTLED, Outcome.REPEAT)
    assert lab.store.settle(spent(call, 70, 70)) is Outcome.REPEAT
    balanced(lab.store, 71, 0)
    assert {row["state"] for row in rows(lab.store).values()} == {"settled"}


def test_a_swallowed_reserve_is_refused_and_given_back(lab):
    lab.proxy.fault(SWALLOW, "reserve")
    lost = ask()
    with pytest.raises(StoreUnavailable):
        reserve(lab.store, lost)
    call = ask(10)
    assert reserve(lab.store, call).outcome is Outcome.ADMITTED
    balanced(lab.store, 1, 10)
    assert rows(lab.store)[lost.id]["state"] == "released"
    assert reserve(lab.store, lost).outcome is Outcome.REPEAT
    balanced(lab.store, 1, 10)


def test_a_reserve_that_arrives_after_its_release_holds_nothing(lab):
    late = threading.Event()
    lab.proxy.fault(Fault(until=late), "reserve")
    lost, call = ask(), ask(10)
    with pytest.raises(StoreUnavailable):
        reserve(lab.store, lost)
    assert reserve(lab.store, call).outcome is Outcome.ADMITTED
    before = lab.proxy.count("reserve")
    late.set()
    redis_servers.until(lambda: executed(lab, "evalsha") > before, "the late one never came")
    balanced(lab.store, 1, 10)
    assert lost.id not in rows(lab.store) or rows(lab.store)[lost.id]["state"] == "released"


def executed(lab: Faulty, command: str) -> int:
    stats = lab.server.facts("commandstats")
    line = stats.get(f"cmdstat_{command}", "calls=0,")
    return int(line.split(",")[0].removeprefix("calls="))


def test_a_coroutine_cancelled_while_it_reserves_holds_nothing(lab):
    late = threading.Event()
    first, lost = current(lab.store, ask(1)), current(lab.store, ask())

    async def cancelled():
        async with asyncio.timeout(10):  # it connects meanwhile
            while await lab.store.areserve(first) is None:
                await asyncio.sleep(0.01)
        lab.proxy.fault(Fault(until=late), "reserve")
        task = asyncio.ensure_future(lab.store.areserve(lost))
        before = lab.proxy.count("reserve")
        async with asyncio.timeout(10):
            while lab.proxy.count("reserve") == before:
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    before = executed(lab, "evalsha")
    late.set()
    redis_servers.until(lambda: executed(lab, "evalsha") > before, "the late one never came")
    assert reserve(lab.store, ask(10)).outcome is Outcome.ADMITTED
    assert reserve(lab.store, ask(10)).outcome is Outcome.ADMITTED
    balanced(lab.store, 1, 21)


def test_a_call_interrupted_while_it_reserves_holds_nothing(lab, monkeypatch):
    class Interrupt(BaseException):
        pass

    def interrupted(link, *command):
        raw(link, *command)
        raise Interrupt

    raw = wire.Link.ask
    with monkeypatch.context() as patch:
        patch.setattr(wire.Link, "ask", interrupted)
        with pytest.raises(Interrupt):
            reserve(lab.store, ask())
    reserve(lab.store, ask(10))
    balanced(lab.store, 1, 10)


def test_a_swallowed_settle_is_kept_and_applied_once(lab):
    call = ask()
    assert reserve(lab.store, call).outcome is Outcome.ADMITTED
    lab.proxy.fault(SWALLOW, "settle")
    assert lab.store.settle(spent(call, 70, 70)) is Outcome.KEPT
    for _ in range(3):
        lab.store.drain()
    balanced(lab.store, 71, 0)
    assert rows(lab.store)[call.id]["flags"] == []


def test_a_settle_that_arrives_after_it_was_applied_changes_nothing(lab):
    call = ask()
    assert reserve(lab.store, call).outcome is Outcome.ADMITTED
    late = threading.Event()
    lab.proxy.fault(Fault(until=late), "settle")
    assert lab.store.settle(spent(call, 70, 70)) is Outcome.KEPT
    lab.store.drain()
    before = executed(lab, "evalsha")
    late.set()
    redis_servers.until(lambda: executed(lab, "evalsha") > before, "the late one never came")
    balanced(lab.store, 71, 0)
    assert rows(lab.store)[call.id]["flags"] == []


def test_a_swallowed_extension_ends_with_its_call(lab):
    call = ask()
    assert reserve(lab.store, call).outcome is Outcome.ADMITTED
    lab.proxy.fault(SWALLOW, "extend")
    with pytest.raises(StoreUnavailable):
        lab.store.extend(replace(call, amounts=Amounts(5, 5, 0)))
    assert lab.store.settle(spent(call, 70, 70)) is Outcome.KEPT
    lab.store.drain()
    balanced(lab.store, 71, 0)


@pytest.mark.parametrize("fault", [CUT_AFTER, SWALLOW], ids=["cut", "swallowed"])
@pytest.mark.parametrize("charge_it", [False, True], ids=["give back", "charge"])
def test_a_lost_answer_to_a_sweeper_ends_a_lease_once(lab, fault, charge_it):
    call = ask()
    assert reserve(lab.store, call).outcome is Outcome.ADMITTED
    redis_stores.let_pass(lab.store, 10_000)
    lab.proxy.fault(fault, "expire")
    try:
        lab.store.expire(NOW, charge=charge_it)
    except StoreUnavailable:
        assert fault is SWALLOW
    lab.store.expire(NOW, charge=charge_it)
    balanced(lab.store, 81 if charge_it else 1, 0)
    assert lab.store.settle(spent(call, 70, 70)) is Outcome.LATE
    balanced(lab.store, 71, 0)


def test_answers_lost_at_random_leave_books_that_balance(lab):
    chance = random.Random(57)
    lab.store.wire.breaker.failed = lambda: None
    used = 1
    for turn in range(60):
        fault = chance.choice([CUT_AFTER, CUT_BEFORE, CUT_AFTER, Fault()])
        lab.proxy.fault(fault, chance.choice(["reserve", "settle", "publish", "mget"]))
        call = ask(chance.randrange(1, 9))
        assert reserve(lab.store, call).outcome is Outcome.ADMITTED
        if turn % 3:
            amount = chance.randrange(9)
            used += amount
            lab.store.settle(spent(call, amount, amount))
        else:
            lab.store.settle(unspent(call))
    lab.proxy.heal()
    lab.store.drain()
    balanced(lab.store, used, 0)


# What the server has forgotten or has under a wrong type


@pytest.mark.parametrize("operation", ["reserve", "extend", "settle", "expire", "usage", "rebuild"])
def test_scripts_that_the_server_has_forgotten_are_sent_again(lab, operation):
    call = ask()
    if operation != "reserve":
        assert reserve(lab.store, call).outcome is Outcome.ADMITTED
    if operation == "expire":
        redis_stores.let_pass(lab.store, 10_000)
    lab.server.ask("SCRIPT", "FLUSH")
    if operation == "reserve":
        assert reserve(lab.store, call).outcome is Outcome.ADMITTED
    elif operation == "extend":
        assert lab.store.extend(call).outcome is Outcome.EXTENDED
    elif operation == "settle":
        assert lab.store.settle(spent(call, 70, 70)) is Outcome.SETTLED
    elif operation == "expire":
        assert lab.store.expire(NOW, charge=False) == 1
    elif operation == "usage":
        assert figures(lab.store, DAY) == [(1, 80)]
    assert lab.store.rebuild(NOW) == []


def wrong(lab, name):
    """Put something else there; what it was."""
    kind, before = lab.server.ask("TYPE", name), lab.server.ask("DUMP", name)
    lab.server.ask("DEL", name)
    lab.server.ask("RPUSH" if kind == b"string" else "SET", name, "wrong")
    return before


@pytest.mark.parametrize("operation", ["reserve", "settle", "release", "extend"])
def test_a_key_of_the_wrong_type_moves_nothing_or_is_mended(lab, operation):
    open_call = ask()
    assert reserve(lab.store, open_call).outcome is Outcome.ADMITTED
    lab.store.drain()
    failed = Tally()
    for name in lab.dump():
        call = ask(10) if operation == "reserve" else ask(20)
        if operation != "reserve":
            assert reserve(lab.store, call).outcome is Outcome.ADMITTED
            lab.store.drain()
        original = wrong(lab, name)
        before = lab.dump()
        try:
            if operation == "reserve":
                reserve(lab.store, call)
            elif operation == "extend":
                lab.store.extend(call)
            else:
                end = spent(call, 3, 3) if operation == "settle" else unspent(call)
                if lab.store.settle(end) is Outcome.KEPT:
                    raise StoreUnavailable
        except StoreUnavailable:
            failed[name] += 1
            assert lab.dump() == before, name
        if lab.server.ask("DUMP", name) == before.get(name):
            lab.server.ask("RESTORE", name, 0, original, "REPLACE")
        lab.store.drain()
        lab.store.settle(unspent(call))
        lab.store.rebuild(NOW)
    used = figures(lab.store, DAY)[0][0]
    assert figures(lab.store, *BOTH) == [(used, 80)] * 2


# Many callers, and copies of the process


def test_two_hundred_threads_share_a_few_connections(lab):
    barrier = threading.Barrier(200)

    def one(_):
        call = ask(1)
        barrier.wait(30)
        assert reserve(lab.store, call).outcome is Outcome.ADMITTED
        return lab.store.settle(spent(call, 1, 1))

    with ThreadPoolExecutor(200) as pool:
        outcomes = Tally(pool.map(one, range(200)))
    assert outcomes == {Outcome.SETTLED: 200}
    balanced(lab.store, 201, 0)
    clients = int(lab.server.facts("clients")["connected_clients"])
    assert clients < 60


def test_a_counter_deleted_while_a_call_settles_is_counted_from_the_ledger(lab):
    call = ask()
    assert reserve(lab.store, call).outcome is Outcome.ADMITTED
    redis_stores.lose(lab.store, DAY.key)
    assert lab.store.settle(spent(call, 70, 70)) is Outcome.SETTLED
    assert DAY.key not in redis_stores.counters(lab.store)
    assert reserve(lab.store, ask(10)).outcome is Outcome.ADMITTED
    balanced(lab.store, 71, 10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes can be copied")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_copy_of_the_process_asks_by_connections_of_its_own(lab):
    call = ask()
    assert reserve(lab.store, call).outcome is Outcome.ADMITTED
    child = os.fork()
    if child == 0:
        try:
            done = all(lab.store.wire.execute("INCR", "{fork}:n") for _ in range(50))
        except BaseException:
            done = False
        os._exit(0 if done else 1)
    for _ in range(50):
        assert figures(lab.store, DAY) == [(1, 80)]
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert ended[1] == 0
    assert lab.server.ask("GET", "{fork}:n") == b"50"
    balanced(lab.store, 1, 80)
