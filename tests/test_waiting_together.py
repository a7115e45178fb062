"""Many calls that wait for the same room: all are served, in turn, and the store is not stormed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone

from project.provider import FIXED_COST, Provider
from tests import callers
from tests.metering import within
from tests.racers import Racers, provider, racers
from tests.races import MODEL
from tests.stores import used
from tests.waiters import admitted_at_once, ask, call, in_flight, stands, wait
from token_allowance import conf
from token_allowance.models import Limit, Price, Reservation
from token_allowance.usage import Usage

__all__ = ["provider", "racers"]

CALL_MICROS = 500  # 100 tokens in at $1 and 100 out at $4 per million
MOST_MICROS = 4_100  # the same with an answer of 1000


@pytest.fixture(scope="module")
def processes() -> Iterator[callers.Callers]:
    with callers.running() as made:
        yield made


def test_a_burst_of_fifty_is_served_by_a_budget_that_its_real_cost_fits(
    racers: Racers, provider: Provider, database: str, settings: LazySettings
) -> None:
    """Seven times what the budget has is what they may need: never are all of them in flight."""
    amount = 49 * CALL_MICROS + MOST_MICROS
    Price.objects.using(database).create(
        provider="openai", model=MODEL, input_mtok=Decimal(1), output_mtok=Decimal(4)
    )
    Limit.objects.using(database).create(unit="cost", amount=amount, window="month")
    provider.reset()
    provider.script(default=replace(FIXED_COST, delay_seconds=0.05))
    store = getattr(settings, conf.NAME)["STORE"]
    burst = [[{"tokens": 1000}]] * 50
    try:
        seen = racers.race(database, "chat", burst, store, wait_seconds=30)
        assert seen == {"admitted": 50, "refused": 0}
    finally:
        racers.rest(database)
    assert provider.totals().received == 50
    assert 1 < provider.totals().open_peak <= amount // MOST_MICROS
    assert [figure[:2] for figure in used()] == [(50 * CALL_MICROS, 0)]
    conf.store().drain()
    rows = Reservation.objects.using(database)
    assert rows.count() == rows.filter(state="settled", flags=[]).count() == 50
    assert conf.store().rebuild(timezone.now()) == []


def test_a_killed_head_of_the_line_keeps_the_next_out_for_three_seconds_at_most(
    limit: Limit, tries: list[Any], processes: callers.Callers
) -> None:
    with ThreadPoolExecutor(1) as thread:
        with in_flight(80) as first:
            pid = processes.start(kind="wait_in_line", tokens=80, seconds=60)
            assert within(lambda: not admitted_at_once(1))
            second = thread.submit(ask, 80)
            assert within(stands(tries))
            processes.kill(pid)
            killed = time.monotonic()
            first.release()
        assert 1 < second.result(10) - killed < 4
    assert used(tenant="acme")[0][1] == 0


def test_fifty_that_wait_are_no_storm(tries: list[Any]) -> None:
    with call(80) as first, ThreadPoolExecutor(50) as threads:
        waiting = [threads.submit(ask, 80, 0) for _ in range(50)]
        assert within(stands(tries, 50))
        before = len(tries)
        time.sleep(1)
        asked = len(tries) - before
        first.release()
        for one in waiting:
            one.cancel() or one.result(30)
    assert 10 <= asked <= 400  # who asks every 20 ms would have asked 2,500 times


def test_a_large_call_among_many_small_ones_is_served(limit: Limit) -> None:
    stop = threading.Event()

    def small() -> int:
        served = 0
        while not stop.is_set():
            ask(20, 0, seconds=0.02)
            served += 1
        return served

    with ThreadPoolExecutor(9) as threads:
        stream = [threads.submit(small) for _ in range(8)]
        time.sleep(0.3)
        began = time.monotonic()
        try:
            took = ask(100, 0) - began
            time.sleep(0.3)
        finally:
            stop.set()
        assert took < 3
        assert all(one.result(30) > 0 for one in stream)


def test_calls_that_need_two_budgets_never_wait_for_each_other(
    database: str, settings: LazySettings
) -> None:
    wait(settings, 20)
    for shape in ({"tenant": "*"}, {"user": "*"}):
        Limit.objects.using(database).create(unit="tokens", amount=100, window="total", **shape)

    def mixed(number: int) -> None:
        for turn in range(4):
            tenant, user = "ab"[(number + turn) % 2], "uv"[number // 2 % 2]
            with call(60, tenant, user=user) as made:
                time.sleep(0.005)
                made.record(Usage(0))

    with ThreadPoolExecutor(8) as threads:
        for one in [threads.submit(mixed, number) for number in range(8)]:
            one.result(30)
