"""Many threads at one store: nothing is admitted twice, lost, or locked for ever."""

from __future__ import annotations

import datetime as dt
import random
import threading
from collections import Counter as Tally
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.stores import NOW, budget, charge, counters, figures, request, reserve, rows, spent
from token_allowance.limits import Budget, microseconds
from token_allowance.stores.base import Outcome, Request, Store
from token_allowance.windows import Window


def at_once(work: Callable[[Any], Any], things: Iterable[Any], threads: int) -> list[Any]:
    """Do the work for all things, the first of each thread at the same moment."""
    todo = list(things)
    start = threading.Barrier(threads)
    waiting = threading.local()

    def run(thing: Any) -> Any:
        if not hasattr(waiting, "done"):
            waiting.done = True
            start.wait(10)
        return work(thing)

    assert len(todo) >= threads
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, todo))


def ask(store: Store, asked: Request) -> Outcome:
    return reserve(store, asked).outcome


def test_c39_of_four_calls_at_once_only_those_are_admitted_that_fit(store: Store) -> None:
    for turn in range(10):
        day = budget(amount=5_000_000, tenant=f"t{turn}")
        charge(store, day, cost=4_752_720)
        asked = [request(day, cost=88_400) for _ in range(4)]
        outcomes = Tally(at_once(lambda one: ask(store, one), asked, 4))
        assert outcomes == {Outcome.ADMITTED: 2, Outcome.REFUSED: 2}
        assert figures(store, day) == [(4_752_720, 176_800)]


def test_c54_twelve_callers_share_five_calls(store: Store) -> None:
    calls, tokens = budget("calls", 5), budget("tokens", 10**6, tenant="acme")
    asked = [request(calls, tokens, tokens=7) for _ in range(12)]
    outcomes = Tally(at_once(lambda one: ask(store, one), asked, 12))
    assert outcomes == {Outcome.ADMITTED: 5, Outcome.REFUSED: 7}
    assert figures(store, calls, tokens) == [(0, 5), (0, 35)]


def test_c55_settling_in_any_order_meets_no_deadlock_and_loses_nothing(store: Store) -> None:
    def budgets(user: str, tenant: str) -> list[Budget]:
        return [
            budget(amount=10**9, user=user),
            budget(amount=10**9, tenant=tenant),
            budget(amount=10**9, window=Window.MONTH),
        ]

    chance = random.Random(55)
    asked = [request(*budgets(chance.choice("uvw"), chance.choice("ab")), cost=5)
             for _ in range(120)]  # fmt: skip
    assert set(at_once(lambda one: ask(store, one), asked, 12)) == {Outcome.ADMITTED}
    chance.shuffle(asked)
    settled = at_once(lambda one: store.settle(spent(one, 3)), asked, 12)
    assert set(settled) == {Outcome.SETTLED}
    assert figures(store, budgets("u", "a")[2]) == [(360, 0)]
    assert store.rebuild(NOW) == []


def test_c56_the_first_calls_of_a_window_open_one_counter(store: Store) -> None:
    midnight = dt.datetime(2026, 3, 4, tzinfo=dt.UTC)
    everybody = budget(amount=1000, now=midnight)
    asked = [request(everybody, cost=10, at=midnight) for _ in range(20)]
    assert set(at_once(lambda one: ask(store, one), asked, 10)) == {Outcome.ADMITTED}
    assert counters(store) == {everybody.key: (0, 200)}
    assert len(rows(store)) == 20


def test_counters_seeded_by_many_at_once_count_every_call_once(store: Store) -> None:
    early = [request(cost=10, tenant="acme") for _ in range(10)]
    for one in early:
        reserve(store, one)
    made = [budget(amount=300, since=microseconds(NOW)),
            budget(amount=10**6, since=microseconds(NOW), tenant="acme")]  # fmt: skip

    def work(one: Request) -> Outcome:
        return ask(store, one) if one.budgets else store.settle(spent(one, 20))

    late = [request(*made, cost=10) for _ in range(20)]
    mixed = [one for pair in zip(late, early + early, strict=True) for one in pair]
    outcomes = Tally(at_once(work, mixed, 8))
    assert outcomes[Outcome.SETTLED] == outcomes[Outcome.REPEAT] == 10
    admitted = outcomes[Outcome.ADMITTED]
    assert figures(store, *made) == [(200, 10 * admitted)] * 2
    assert 10 <= admitted <= 20
    assert store.rebuild(NOW) == []


def test_rebuilding_beside_calls_finds_nothing_to_correct(store: Store) -> None:
    budgets = budget(amount=10**9), budget("tokens", 10**9, tenant="acme")
    done = threading.Event()
    drifts: list[Any] = []

    def rebuild() -> None:
        while not done.wait(0.005):
            drifts.extend(store.rebuild(NOW))

    def call(number: int) -> Outcome:
        one = request(*budgets, cost=5, tokens=2)
        reserve(store, one)
        return store.settle(spent(one, number % 9, 1))

    rebuilding = threading.Thread(target=rebuild)
    rebuilding.start()
    try:
        assert set(at_once(call, range(60), 6)) == {Outcome.SETTLED}
    finally:
        done.set()
        rebuilding.join(10)
    assert drifts == []
    assert figures(store, *budgets) == [(sum(n % 9 for n in range(60)), 0), (60, 0)]
