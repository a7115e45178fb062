"""Callers that are killed between reserve and settle, or anywhere else."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from uuid import UUID

import pytest
from django.conf import LazySettings
from django.db import connections
from django.utils import timezone

from tests import callers
from tests.stores import hold, let_pass, spend, used
from token_allowance import allowance, conf, entries
from token_allowance.exceptions import AllowanceExceeded
from token_allowance.limits import Amounts
from token_allowance.models import Limit, Reservation
from token_allowance.stores.base import Outcome, Settlement
from token_allowance.usage import Usage

WORKERS = 4
SECONDS = 2.0


@pytest.fixture(scope="module")
def processes() -> Iterator[callers.Callers]:
    with callers.running() as made:
        yield made


def late(number: int, tokens: int) -> Settlement:
    """What the killed caller would have said of one of its calls."""
    row = conf.store().find(tenant="acme", idempotency_key=f"call-{number}")
    actual = Amounts(None, tokens)
    final = entries.ended("settled", (), Usage(tokens), None, actual, None)
    return Settlement(id=UUID(row["id"]), actual=actual, row=row | final)


def states(alias: str) -> dict[str, int]:
    conf.store().drain()
    found = list(Reservation.objects.using(alias).values_list("state", flat=True))
    return {state: found.count(state) for state in sorted(set(found))}


def killed_with_52_calls_in_flight(alias: str, processes: callers.Callers) -> None:
    Limit.objects.using(alias).create(unit="tokens", amount=800, window="total")
    spend(280)
    pid = processes.start(kind="hold_and_wait", tokens=10, count=52)
    assert used() == [(280, 520, 0)]
    processes.kill(pid)
    assert used() == [(280, 520, 0)]
    let_pass(conf.store(), 590)
    with pytest.raises(AllowanceExceeded) as caught:
        hold(10)
    assert caught.value.reason == "held"
    assert states(alias) == {"reserved": 52, "settled": 1}
    let_pass(conf.store(), 11)


def test_c46_the_hold_of_a_killed_caller_ends_with_its_lease(
    database: str, processes: callers.Callers
) -> None:
    killed_with_52_calls_in_flight(database, processes)
    hold(10)  # needs the room, and finds that the leases are over
    assert used() == [(280, 10, 510)]
    assert states(database) == {"expired": 52, "reserved": 1, "settled": 1}
    assert conf.store().settle(late(0, 7)) is Outcome.LATE
    assert conf.store().settle(late(0, 7)) is Outcome.REPEAT
    assert used() == [(287, 10, 503)]
    assert conf.store().rebuild(timezone.now()) == []


def test_the_cautious_charge_what_a_killed_caller_held_until_the_truth_is_known(
    database: str, processes: callers.Callers, settings: LazySettings
) -> None:
    settings.TOKEN_ALLOWANCE = {**settings.TOKEN_ALLOWANCE, "ON_EXPIRE": "charge"}
    killed_with_52_calls_in_flight(database, processes)
    with pytest.raises(AllowanceExceeded) as caught:
        hold(10)
    assert caught.value.reason == "exhausted"
    assert used() == [(800, 0, 0)]
    assert states(database) == {"expired": 52, "settled": 1}
    assert conf.store().settle(late(0, 7)) is Outcome.LATE
    assert used() == [(797, 0, 3)]
    assert conf.store().rebuild(timezone.now()) == []


def test_killing_callers_anywhere_leaves_counters_that_equal_the_ledger(
    database: str, processes: callers.Callers
) -> None:
    limits = Limit.objects.using(database)
    limits.create(unit="tokens", amount=10**7, window="total")
    limits.create(tenant="*", unit="calls", amount=10**6, window="total")
    limits.create(tenant="*", user="*", unit="tokens", amount=10**6, window="total")
    limits.create(tenant="a", user="u", unit="tokens", amount=1500, window="total")  # gets full
    chance = random.Random(46)
    running: list[int] = []
    end = time.monotonic() + SECONDS
    killed = 0
    while time.monotonic() < end:
        while len(running) < WORKERS:
            running.append(processes.start(kind="call_for_ever", seed=killed))
        time.sleep(chance.uniform(0.01, 0.15))
        processes.kill(running.pop(chance.randrange(WORKERS)))
        killed += 1
    for pid in running:
        processes.kill(pid)
    wait_until_quiet(database)
    assert killed > 5
    assert Reservation.objects.using(database).count() > killed
    assert conf.store().rebuild(timezone.now()) == []
    for tenant, user in ("au", "av", "bu", "bv"):
        for room in allowance.remaining(tenant=tenant, user=user):
            assert room.used + room.reserved <= room.amount
    let_pass(conf.store(), 601)
    while conf.store().expire(timezone.now(), charge=False):
        pass
    assert "reserved" not in states(database)
    assert all(reserved == 0 for _, reserved, _ in used(tenant="a", user="u"))
    assert conf.store().rebuild(timezone.now()) == []


def wait_until_quiet(alias: str) -> None:
    """PostgreSQL may still be finishing what a killed client had asked for."""
    if connections[alias].vendor != "postgresql":
        return
    deadline = time.monotonic() + 10
    with connections[alias].cursor() as cursor:
        while time.monotonic() < deadline:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND state <> 'idle' AND pid <> pg_backend_pid()"
            )
            if cursor.fetchone() == (0,):
                return
            time.sleep(0.01)
    raise TimeoutError("backends of killed clients are still at work")
