"""Races for one budget: real SDK clients in four processes, over HTTP, on both databases.

What reached the provider is the truth; its log is compared with the counters and the ledger.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections
from django.db.models import Sum
from django.utils import timezone

from project.provider import FIXED_COST, Reply
from tests.racers import PROCESSES, Racers, provider, racers
from tests.races import MODEL, STORE
from token_allowance import conf
from token_allowance.counters import budget_of
from token_allowance.models import Counter, Limit, Price, Reservation

__all__ = ["provider", "racers"]

REPEATS = 20
CALL_MICROS = 500  # 100 tokens in at $1 and 100 out at $4 per million
BOTH = ("default", "sqlite")

pytestmark = pytest.mark.django_db(databases=BOTH, transaction=True)


@pytest.fixture(params=BOTH, ids=("postgresql", "sqlite"))
def alias(request, settings, racers):
    """The database whose budgets are raced for, with the price of the model in it."""
    settings.TOKEN_ALLOWANCE = {"STORE": {"BACKEND": STORE, "OPTIONS": {"alias": request.param}}}
    Price.objects.using(request.param).create(
        provider="openai", model=MODEL, input_mtok=1, output_mtok=4
    )
    yield request.param
    racers.rest(request.param)


def limit(alias: str, *, seeded: bool = True, window: str = "month", **values: Any) -> None:
    """Make a limit. Unless ``seeded`` it counts as watched for long: new counters start at zero."""
    made = Limit.objects.using(alias).create(window=window, **values)
    if not seeded:
        Limit.objects.using(alias).filter(pk=made.pk).update(tracked_since=0)


def figures(alias: str) -> list[tuple[int, int]]:
    """(used, reserved) of every counter."""
    return list(Counter.objects.using(alias).order_by("key").values_list("used", "reserved"))


def call(tokens: int, **who: str) -> dict[str, Any]:
    """A call whose answer may take this many tokens, at 4 micro-dollars each."""
    return {"tokens": tokens, **who}


def anyone(tokens: int = 100) -> dict[str, Any]:
    """A call of some tenant's user for some feature."""
    names = {"tenant": "abc", "user": "uvwxyz", "feature": "fgh"}
    return call(tokens, **{name: random.choice(values) for name, values in names.items()})


@contextmanager
def watched(alias: str) -> Iterator[dict[str, int]]:
    """The least room that each counter was ever seen to leave of its limit's amount."""
    amounts = {
        (tuple(n for n in ("tenant", "user", "feature") if getattr(row, n)), row.unit): row.amount
        for row in Limit.objects.using(alias)
    }
    worst: dict[str, int] = {}
    stop = threading.Event()

    def look() -> None:
        counters = Counter.objects.using(alias)
        for key, used, reserved in counters.values_list("key", "used", "reserved"):
            rule = budget_of(key).limit
            room = amounts[rule.shape, rule.unit.value] - used - reserved
            worst[key] = min(room, worst.get(key, room))

    def watch() -> None:
        try:
            while not stop.wait(0.02):
                look()
        finally:
            connections[alias].close()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield worst
    finally:
        stop.set()
        thread.join()
    look()


@contextmanager
def deadlocks_counted(racers: Racers, alias: str) -> Iterator[list[int]]:
    """How many deadlocks the server resolved meanwhile: even those that are retried are faults."""
    found = [0]
    racers.rest(alias)
    before = deadlocks(alias)
    yield found
    racers.rest(alias)
    found[0] = deadlocks(alias) - before


def deadlocks(alias: str) -> int:
    """As counted when every other connection has ended: servers count late."""
    if connections[alias].vendor != "postgresql":
        return 0
    with connections[alias].cursor() as cursor:
        for _ in range(100):
            cursor.execute(
                "SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND backend_type = 'client backend'), deadlocks "
                "FROM pg_stat_database WHERE datname = current_database()"
            )
            others, counted = cursor.fetchone()
            if not others:
                return int(counted)
            time.sleep(0.05)
    raise TimeoutError("connections of the racing processes stay open")


@pytest.mark.parametrize(
    ("unit", "amount", "seeded"),
    [("calls", 50, True), ("cost", 50 * CALL_MICROS, False)],
    ids=["calls, counter seeded", "cost, counter fresh"],
)
def test_exactly_fifty_of_two_hundred_calls_reach_the_provider(
    racers, provider, alias, unit, amount, seeded
):
    limit(alias, feature="*", unit=unit, amount=amount, seeded=seeded)
    for repeat in range(REPEATS):
        feature = f"{unit}-{repeat}"
        provider.reset()
        provider.script(default=FIXED_COST)
        seen = racers.race(alias, "chat", [[{"feature": feature, "tokens": 100}]] * 200)
        assert provider.totals().received == 50
        assert seen == {"admitted": 50, "refused": 150}
        counter = Counter.objects.using(alias).get(key__contains=f"feature={feature}|")
        assert (counter.used, counter.reserved) == (amount, 0)
    rows = Reservation.objects.using(alias)
    assert rows.count() == rows.filter(state="settled", flags=[]).count() == 50 * REPEATS
    assert conf.store().rebuild(timezone.now()) == []


@pytest.mark.parametrize("seeded", [True, False], ids=["seeded", "fresh"])
def test_four_limits_of_different_shapes_neither_deadlock_nor_drift(
    racers, provider, alias, seeded
):
    """Attributions, orders and answers are random; what is locked in no fixed order shows here."""
    limit(alias, tenant="*", unit="cost", window="day", amount=60_000, seeded=seeded)
    limit(alias, tenant="*", user="*", unit="tokens", window="hour", amount=5_000, seeded=seeded)
    limit(alias, feature="*", unit="calls", amount=150, seeded=seeded)
    limit(alias, unit="cost", window="day", amount=200_000, seeded=seeded)
    provider.reset()
    provider.script(
        lambda request: Reply(
            input_tokens=random.randint(1, 100),
            output_tokens=random.randint(1, 100),
            delay_seconds=random.random() / 50,
        )
    )
    callers = [[anyone() for _ in range(4)] for _ in range(200)]
    with deadlocks_counted(racers, alias) as deadlocks, watched(alias) as worst:
        seen = racers.race(alias, "chat", callers)
    assert deadlocks == [0]
    assert [key for key, room in worst.items() if room < 0] == []
    assert len(worst) > 20
    rows = Reservation.objects.using(alias)
    assert seen["admitted"] == provider.totals().received == rows.filter(state="settled").count()
    assert seen["admitted"] + seen["refused"] == 800
    assert seen["refused"] > 100
    assert conf.store().rebuild(timezone.now()) == []
    assert not Counter.objects.using(alias).exclude(reserved=0).exists()


def test_c39_of_four_calls_at_once_only_those_that_fit_are_admitted(racers, alias):
    tenants = [f"t{number}" for number in range(200)]
    limit(alias, tenant="*", unit="cost", amount=5_000_000)
    racers.race(alias, "hold", [[call(1_188_180, tenant=name)] for name in tenants])
    racers.settle(alias)
    assert figures(alias) == [(4_752_720, 0)] * 200
    four = [
        [call(22_100, tenant=tenants[place + 50 * turn]) for turn in range(4)]
        for place, _ in itertools.product(range(50), range(PROCESSES))
    ]
    assert racers.race(alias, "hold", four) == {"admitted": 400, "refused": 400}
    assert figures(alias) == [(4_752_720, 176_800)] * 200
    racers.settle(alias)
    assert figures(alias) == [(4_929_520, 0)] * 200


def test_c41_what_is_held_is_the_estimate_however_many_ask_at_once(racers, alias):
    limit(alias, unit="cost", amount=10_000_000)
    thousand = [[call(22_500)] * 5] * 200
    assert racers.race(alias, "hold", thousand) == {"admitted": 111, "refused": 889}
    assert figures(alias) == [(0, 9_990_000)]
    racers.settle(alias)
    assert figures(alias) == [(9_990_000, 0)]


def test_c54_calls_are_counted_once_across_processes(racers, alias):
    limit(alias, unit="calls", amount=5)
    assert racers.race(alias, "hold", [[call(1)]] * 12) == {"admitted": 5, "refused": 7}
    racers.settle(alias)
    assert figures(alias) == [(5, 0)]


def test_c54_a_call_that_another_budget_refuses_takes_no_slot(racers, alias):
    limit(alias, unit="calls", amount=5)
    limit(alias, tenant="*", unit="tokens", amount=1_000)
    twice = [[call(600, tenant="acme")] * 2]
    assert racers.race(alias, "hold", twice) == {"admitted": 1, "refused": 1}
    others = [[call(600, tenant=f"t{number}")] for number in range(12)]
    assert racers.race(alias, "hold", others) == {"admitted": 4, "refused": 8}
    racers.settle(alias)
    assert Counter.objects.using(alias).get(key__contains="|global|calls|").used == 5


def test_c55_settling_in_any_order_neither_deadlocks_nor_loses_a_count(racers, alias):
    limit(alias, tenant="*", user="*", unit="cost", amount=10**9)
    limit(alias, tenant="*", unit="cost", amount=10**9)
    limit(alias, unit="cost", amount=10**9)
    callers = [[anyone() | {"tokens": random.randint(1, 9)} for _ in range(4)] for _ in range(200)]
    with deadlocks_counted(racers, alias) as deadlocks:
        assert racers.race(alias, "hold", callers) == {"admitted": 800, "refused": 0}
        racers.settle(alias)
    assert deadlocks == [0]
    total = Reservation.objects.using(alias).aggregate(sum=Sum("cost_micros"))["sum"]
    expected = 4 * sum(one["tokens"] for caller in callers for one in caller)
    assert total == expected
    assert figures(alias)[-1] == (expected, 0)  # the global one sorts last
    assert conf.store().rebuild(timezone.now()) == []


@pytest.mark.parametrize("seeded", [True, False], ids=["seeded", "fresh"])
def test_c56_first_calls_of_a_budget_share_one_counter(racers, alias, seeded):
    limit(alias, unit="tokens", amount=1_000, seeded=seeded)
    racers.race(alias, "hold", [[call(7)]] * 20)
    assert figures(alias) == [(0, 140)]
    racers.settle(alias)
    assert figures(alias) == [(140, 0)]
