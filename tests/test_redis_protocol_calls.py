"""The interleavings of single reservations, by their numbers (protocols 9 to 15).

That each test can fail is shown in test_redis_mutations.py.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from uuid import UUID

import pytest
from django.utils import timezone

from tests import redis_stores
from tests.redis_rules import between, process, processes, shared
from tests.stores import (
    NOW,
    budget,
    charge,
    figures,
    refused_by,
    request,
    reserve,
    row,
    spent,
    unspent,
)
from token_allowance.exceptions import StoreUnavailable
from token_allowance.limits import Budget, microseconds
from token_allowance.stores.base import Outcome
from token_allowance.stores.redis import RedisStore, ends
from token_allowance.stores.redis import holds as held
from token_allowance.windows import Window

__all__ = ["shared"]

DAY = budget(amount=1000)
USER = budget(amount=1000, user="u1")
HOUR = budget(amount=1000, window=Window.ROLLING, rolling_seconds=3600)
NEXT = timezone.now() + dt.timedelta(days=2)  # its day begins while we count


# 9. Replies that are lost, late, or errors


def test_protocol_09_a_reserve_that_its_release_overtakes_holds_nothing(shared: RedisStore) -> None:
    charge(shared, DAY, cost=10)
    asked = request(DAY, cost=40)
    with process(shared) as other:
        other.settle(unspent(asked))
        assert reserve(shared, asked).outcome is Outcome.REPEAT
        assert figures(other, DAY) == [(10, 0)]


KEYS = ("R", "leases", "events", "queue", "day:u", "day:r", "user:u", "user:r", "hour", "idem")


@pytest.mark.parametrize("wrong", KEYS)
def test_protocol_09_a_key_of_a_wrong_type_moves_no_counter(shared: RedisStore, wrong: str) -> None:
    budgets = (DAY, USER, HOUR)
    charge(shared, *budgets, cost=10)
    reserve(shared, request(*budgets, cost=20))
    before = redis_stores.counters(shared)
    asked = request(*budgets, cost=40, key="k")
    names = shared.asking.names
    day, user, hour = (names.counter(b.key, 0) for b in budgets)
    name = dict(
        zip(
            KEYS,
            (
                names.reservation(asked.id), names.leases, names.events, names.queue,
                *day, *user, hour[0], names.idempotent("", "k"),
            ),
            strict=True,
        )
    )[wrong]  # fmt: skip
    kept = shared.wire.execute("DUMP", name)
    shared.wire.execute("DEL", name)
    strings = wrong in ("leases", "events", "hour")
    shared.wire.execute(*(("SET", name, "x") if strings else ("SADD", name, "x")))
    admitted = failed = False
    try:
        admitted = reserve(shared, asked).outcome is Outcome.ADMITTED
    except StoreUnavailable:
        failed = True
    if not admitted:
        shared.wire.execute("DEL", name)
        if kept is not None:
            shared.wire.execute("RESTORE", name, 0, kept)
        assert redis_stores.counters(shared) == before
    assert failed or wrong not in ("leases", "events", "hour")
    shared.settle(unspent(asked))
    assert shared.rebuild(NOW) == []


# 11. Reservations that Redis does not know at settle


@pytest.mark.parametrize("drained", [False, True])
def test_protocol_11_a_settlement_told_again_when_redis_has_forgotten_it(
    shared: RedisStore, drained: bool
) -> None:
    asked = charge(shared, DAY, cost=100)
    if drained:
        shared.drain()
    shared.wire.execute("DEL", shared.asking.names.reservation(asked.id))
    with process(shared) as other:
        assert other.settle(spent(asked, 100)) is Outcome.REPEAT
        assert figures(other, DAY) == [(100, 0)]


def test_protocol_11_a_new_process_charges_what_nobody_has_seen(shared: RedisStore) -> None:
    """It learns the epoch, and so the generations of the counters, from the answer."""
    day = budget(amount=1000, since=microseconds(NOW))
    charge(shared, day, cost=10)
    with process(shared) as other:
        assert other.settle(spent(request(day, cost=40), 30)) is Outcome.LATE
    assert figures(shared, day) == [(40, 0)]


def test_protocol_11_two_settle_what_nobody_has_seen(shared: RedisStore) -> None:
    """Both have looked into the ledger before either of them charges."""
    charge(shared, DAY, cost=10)
    asked = request(DAY, cost=40)
    with process(shared) as other:
        with between(ends, "_of_ledger", lambda: other.settle(spent(asked, 30))):
            assert shared.settle(spent(asked, 30)) is Outcome.REPEAT
        assert figures(shared, DAY) == [(40, 0)]


def test_protocol_11_what_expired_is_charged_once_when_it_ends_after_all(
    shared: RedisStore,
) -> None:
    asked = request(DAY, cost=100)
    reserve(shared, asked)
    redis_stores.let_pass(shared, 601)
    with process(shared) as sweeper:
        assert sweeper.expire(NOW, charge=False) == 1
    assert figures(shared, DAY) == [(0, 0)]
    assert shared.settle(spent(asked, 80)) is Outcome.LATE
    assert shared.settle(spent(asked, 80)) is Outcome.REPEAT
    assert figures(shared, DAY) == [(80, 0)]
    assert row(shared, asked)["state"] == "settled"


@pytest.mark.parametrize("day", [DAY, budget(amount=1000, now=NEXT)], ids=["old", "new"])
def test_a_new_process_finds_the_counters_before_it_shows_them(
    shared: RedisStore, day: Budget
) -> None:
    now = NOW if day is DAY else NEXT
    charge(shared, day, cost=300, at=now)
    with process(shared) as other:
        assert figures(other, day) == [(300, 0)]
    redis_stores.tamper(shared, day.key, {"used": 1})
    with process(shared) as other:
        assert [drift.used for drift in other.rebuild(now)] == [(1, 300)]


# 12. Clocks of the application


@pytest.mark.parametrize("minutes", [-5, 5])
def test_protocol_12_a_skewed_clock_expires_nobody(shared: RedisStore, minutes: int) -> None:
    skewed = NOW + dt.timedelta(minutes=minutes)
    asked = request(DAY, cost=100, lease=240, at=skewed)
    reserve(shared, asked)
    later = timezone.now() + dt.timedelta(minutes=abs(minutes))
    with process(shared) as sweeper:
        assert sweeper.expire(later, charge=False) == 0
        assert not ends.expire(sweeper, str(asked.id), later, charge=False)
    assert figures(shared, DAY) == [(0, 100)]
    redis_stores.let_pass(shared, 241)
    assert shared.expire(NOW - dt.timedelta(hours=1), charge=False) == 1


def test_protocol_12_a_sweeper_that_has_not_heard_of_an_extension_ends_nothing(
    shared: RedisStore,
) -> None:
    asked = request(DAY, cost=100)
    reserve(shared, asked)
    redis_stores.let_pass(shared, 601)
    longer = request(DAY, cost=5, id=asked.id)
    with process(shared) as sweeper, between(held, "read", lambda: shared.extend(longer)):
        assert not ends.expire(sweeper, str(asked.id), NOW, charge=False)
    assert figures(shared, DAY) == [(0, 105)]


# 15. Waiting for room


def ticket(place: int) -> UUID:
    return UUID(f"01900000-0000-7000-8000-{place:012d}")


def test_protocol_15_a_killed_head_blocks_for_three_seconds(shared: RedisStore) -> None:
    full = request(DAY, cost=1000)
    reserve(shared, full)
    with processes(shared, 2) as [killed, other]:
        first = replace(request(DAY, cost=600), ticket=ticket(1))
        second = replace(request(DAY, cost=600), ticket=ticket(2))
        assert reserve(killed, first).rank == 0
        assert reserve(other, second).rank == 1
        shared.settle(unspent(full))
        assert refused_by(reserve(other, second)) == [DAY]
        assert refused_by(reserve(shared, request(DAY, cost=1))) == [DAY]  # no overtaking
        redis_stores.age_tickets(shared, 3.01)
        assert reserve(other, second).outcome is Outcome.ADMITTED
