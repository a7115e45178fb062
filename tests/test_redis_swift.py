"""Deciding on the event loop, over one connection that its tasks share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests import redis_stores
from tests.stores import NOW, budget, figures, own_pool, request, reserve, row, spent, version
from token_allowance.stores.base import Outcome, Request
from token_allowance.stores.redis import RedisStore, swift

MANY = 100


@pytest.fixture
def store(databases: None, django_db_blocker) -> Iterator[RedisStore]:
    with django_db_blocker.unblock(), own_pool("default"), redis_stores.fresh() as made:
        yield made


def asked(store: RedisStore, cost: int, amount: int = 1000, key: str = "") -> Request:
    wanted = request(budget(amount=amount), budget("calls", MANY, tenant="a"), cost=cost, key=key)
    return request(
        *wanted.budgets, cost=cost, key=key, version=version(store), id=wanted.id
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swift, "PATIENT", 0)


def opened(store: RedisStore) -> None:
    """What only the thorough way does: counters are opened, the policy is confirmed."""
    first = asked(store, 0)
    reserve(store, first)
    store.release(spent(first, 0))


def test_what_is_usual_is_decided_on_the_loop(store: RedisStore) -> None:
    opened(store)
    call = asked(store, 80)

    async def use() -> list[Outcome | None]:
        decision = await store.areserve(call)
        assert decision is not None
        return [decision.outcome, await store.asettle(spent(call, 30))]

    assert asyncio.run(use()) == [Outcome.ADMITTED, Outcome.SETTLED]
    assert figures(store, budget())[0] == (30, 0)
    assert row(store, call)["state"] == "settled"
    assert store.rebuild(NOW) == []


def test_many_tasks_share_one_connection_and_never_exceed(store: RedisStore) -> None:
    opened(store)
    calls = [asked(store, 20, amount=1000) for _ in range(MANY)]

    async def use() -> int:
        decided = await asyncio.gather(*(store.areserve(call) for call in calls))
        admitted = [c for c, d in zip(calls, decided, strict=True) if d is not None]
        await asyncio.gather(*(store.asettle(spent(call, 20)) for call in admitted))
        return len(admitted)

    clients = len(store.wire.execute("CLIENT", "LIST").splitlines())
    assert asyncio.run(use()) == 50
    assert len(store.wire.execute("CLIENT", "LIST").splitlines()) <= clients + 1
    assert figures(store, budget())[0] == (1000, 0)


def test_what_is_unusual_is_left_to_a_thread(store: RedisStore) -> None:
    fresh = asked(store, 10)
    assert asyncio.run(store.areserve(fresh)) is None  # nothing is open yet
    assert reserve(store, fresh).outcome is Outcome.ADMITTED
    stranger = asked(store, 10)
    assert asyncio.run(store.asettle(spent(stranger, 10))) is None
    assert asyncio.run(store.areserve(asked(store, 10, key="k"))) is None
    assert asyncio.run(store.areserve(asked(store, 1001))) is None  # refused, with all its figures


def test_a_reached_level_is_said_on_the_loop_and_nothing_moves(store: RedisStore) -> None:
    opened(store)
    before = asked(store, 900)
    reserve(store, before)
    store.settle(spent(before, 900))
    full = replace(asked(store, 10), may_degrade=True)

    async def use() -> list[Outcome]:
        decisions = [
            await store.areserve(call) for call in (full, replace(full, may_degrade=False))
        ]
        return [decision.outcome for decision in decisions if decision is not None]

    assert asyncio.run(use()) == [Outcome.DEGRADE, Outcome.ADMITTED]
    assert figures(store, budget())[0] == (900, 10)


def test_an_answer_that_was_lost_is_found_by_the_thorough_way(store: RedisStore) -> None:
    opened(store)
    call = asked(store, 80)

    async def use() -> None:
        assert await store.areserve(call) is not None
        store.forget(call.id)  # as if the answer had not come

    asyncio.run(use())
    assert reserve(store, call).outcome is Outcome.REPEAT
    assert store.settle(spent(call, 30)) is Outcome.SETTLED
    assert figures(store, budget())[0] == (30, 0)


def test_a_connection_that_is_cut_is_replaced(store: RedisStore) -> None:
    opened(store)
    calls = [asked(store, 1) for _ in range(3)]

    async def use() -> list[bool]:
        found = []
        for call in calls:
            decided = await store.areserve(call)
            found.append(decided is not None)
            store.wire.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")
            await asyncio.sleep(0.01)
        return found

    assert asyncio.run(use()) == [True, True, True]
