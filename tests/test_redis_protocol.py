"""The interleavings of counters and reservations that break naive stores, by their numbers.

Each is forced. That each can fail is shown in test_redis_mutations*.py, where its rule is taken
away. Where the numbers are covered:

==  ==========================================================================================
 1  here; test_store_seeding, test_redis_answers (by deleting a counter under a lab)
 2  here; test_store_seeding, test_store_protocol (limits made, lowered, changed with calls open)
 3  here; test_store_seeding, test_store_protocol (off, expired, overridden, other plan or zone)
 4  test_redis_protocol_policy
 5  test_redis_protocol_policy; test_store_policy
 6  test_redis_protocol_servers; test_redis_faults (killed and started again)
 7  test_redis_protocol_ledger; test_outbox (killed at each step, two at once, order, merging)
 8  test_redis_protocol_ledger; test_outbox (hostile events), test_redis_faults (full memory)
 9  test_redis_protocol_calls; test_redis_answers (answers lost, late or cancelled, wrong types)
10  test_store_kill (SIGKILL anywhere), test_store_leases (what is listed)
11  test_redis_protocol_calls; test_store_repeats, test_store_leases
12  test_redis_protocol_calls; test_store_leases
13  of DatabaseStore: test_atomic_requests, test_connections
14  test_store_rolling (two skewed clocks, two hundred runs)
15  test_redis_protocol_calls; test_store_queues
16  the ladder of notices is not built yet
17  test_redis_protocol_servers (a slot under way, and one that has moved)
==  ==========================================================================================
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.utils import timezone

from tests import redis_stores
from tests.redis_rules import Meanwhile, between, process, processes, shared
from tests.stores import (
    NOW,
    budget,
    charge,
    counters,
    figures,
    hold,
    refused_by,
    request,
    reserve,
    spend,
    spent,
    unspent,
    used,
)
from token_allowance.exceptions import AllowanceExceeded, StoreUnavailable
from token_allowance.limits import Budget, microseconds
from token_allowance.models import Limit
from token_allowance.stores.base import Outcome
from token_allowance.stores.redis import RedisStore, gate, seeding
from token_allowance.usage import Usage
from token_allowance.windows import Window

__all__ = ["shared"]

DAY = budget(amount=1000)
USER = budget(amount=1000, user="u1")
HOUR = budget(amount=1000, window=Window.ROLLING, rolling_seconds=3600)
NEXT = timezone.now() + dt.timedelta(days=2)  # its day begins while we count


# 1. A lost counter


@pytest.mark.parametrize("lost", [DAY, HOUR], ids=["day", "rolling"])
def test_protocol_01_a_settle_does_not_resurrect_a_lost_counter(
    shared: RedisStore, lost: Budget
) -> None:
    charge(shared, lost, cost=300)
    settled, released = request(lost, cost=100), request(lost, cost=50)
    for asked in (settled, released):
        reserve(shared, asked)
    redis_stores.lose(shared, lost.key)
    shared.settle(spent(settled, 80))
    shared.settle(unspent(released))
    assert counters(shared) == {}
    with process(shared) as other:
        assert refused_by(reserve(other, request(lost, cost=621))) == [lost]
        assert reserve(other, request(lost, cost=620)).outcome is Outcome.ADMITTED
        assert figures(other, lost) == [(380, 620)]


def test_protocol_01_a_lost_counter_is_not_taken_for_a_new_one(shared: RedisStore) -> None:
    """Its window began while we counted, so a missing one is zero, if it was never opened."""
    day = budget(amount=1000, now=NEXT)
    charge(shared, day, cost=900, at=NEXT)
    redis_stores.lose(shared, day.key)
    assert refused_by(reserve(shared, request(day, cost=101, at=NEXT))) == [day]


# 2. A limit made while calls are under way


def test_protocol_02_a_limit_counts_calls_that_the_ledger_has_not_seen(shared: RedisStore) -> None:
    done, under_way = request(USER, cost=300), request(USER, cost=500)
    for asked in (done, under_way):
        reserve(shared, asked)
    shared.settle(spent(done, 300))
    with process(shared) as other:
        assert refused_by(reserve(other, request(USER, DAY, cost=201))) == [USER, DAY]
        assert figures(other, DAY) == [(300, 500)]
        shared.settle(spent(under_way, 450))  # this process knows of no DAY
        assert figures(other, DAY, USER) == [(750, 0)] * 2


def test_protocol_02_a_settle_waits_while_its_counter_is_seeded(shared: RedisStore) -> None:
    """Between the sum of the ledger and the write, it would be in neither."""
    asked = request(DAY, cost=100)
    reserve(shared, asked)
    redis_stores.lose(shared, DAY.key)
    with process(shared) as other:
        settle: list[Meanwhile] = []

        def begin() -> None:
            settle.append(Meanwhile(lambda: shared.settle(spent(asked, 80))))
            settle[0].waits()

        with between(seeding, "_of_ledger", begin):
            reserve(other, request(DAY, cost=1))
        assert settle[0].end() is Outcome.SETTLED
        assert figures(other, DAY) == [(80, 1)]


@pytest.mark.parametrize("renews", [False, True])
def test_protocol_02_who_lost_the_gate_while_it_read_writes_nothing(
    shared: RedisStore, renews: bool
) -> None:
    """Stopped for longer than its lease, it wakes up with sums that are out of date."""
    asked = request(DAY, cost=100)
    reserve(shared, asked)
    redis_stores.lose(shared, DAY.key)
    with process(shared) as other, processes(shared, 1) as [slow]:
        gates: list[gate.Gate] = []
        seed = seeding._seed

        def stopped(store: RedisStore, own: gate.Gate, *given: Any) -> Any:
            gates.append(own)
            return seed(store, own, *given)

        def sleep() -> None:
            seeding._seed = seed
            store = shared.wire.execute
            store("DEL", shared.asking.names.gate)
            assert reserve(other, request(DAY, cost=1)).outcome is Outcome.ADMITTED
            assert shared.settle(spent(asked, 80)) is Outcome.SETTLED
            if renews:
                gates[0].keep()

        slow.asking.begin(shared.asking.names.epoch)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(seeding, "_seed", stopped)
            with between(seeding, "_of_ledger", sleep), pytest.raises(StoreUnavailable):
                seeding.seed(slow, [DAY], NOW)
        assert figures(other, DAY) == [(80, 1)]


# 3. A scope that was not counted for a while


def test_protocol_03_a_limit_that_was_off_begins_another_generation(shared: RedisStore) -> None:
    before = budget(amount=120, since=microseconds(NOW))
    again = budget(amount=120, since=microseconds(NOW) + 3_600_000_000)
    charge(shared, before, cost=40)
    open_call = request(before, cost=5)
    reserve(shared, open_call)
    with process(shared) as other:  # it has heard that the limit is off
        charge(other, cost=60)
        assert refused_by(reserve(other, request(again, cost=16))) == [again]
        shared.settle(spent(open_call, 4))
        assert figures(other, again) == [(104, 0)]


def test_protocol_03_a_limit_that_was_shadowed_knows_what_was_spent_meanwhile(
    shared: RedisStore,
) -> None:
    """An exact limit takes the place of a star, and goes away again."""
    scope = {"unit": "tokens", "window": "total", "tenant": "acme"}
    with redis_stores.chosen(shared):
        try:
            Limit.objects.create(**scope, user="*", amount=100)
            spend(10, tenant="acme", user="u1")  # the star's counter is open
            exact = Limit.objects.create(**scope, user="u1", amount=1000)
            spend(50, tenant="acme", user="u1")
            open_call = hold(5, tenant="acme", user="u1")
            exact.delete()
            assert used(tenant="acme", user="u1") == [(60, 5, 35)]
            with pytest.raises(AllowanceExceeded):
                hold(36, tenant="acme", user="u1")
            open_call.settle(Usage(4))
            assert used(tenant="acme", user="u1") == [(64, 0, 36)]
        finally:
            Limit.objects.all().delete()
