"""Rolling windows in every store: no true window of their length ever exceeds the amount."""

from __future__ import annotations

import datetime as dt
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.stores import (
    NOW,
    budget,
    charge,
    counters,
    figures,
    let_pass,
    lose,
    refused_by,
    request,
    reserve,
    spent,
    tamper,
    unspent,
)
from token_allowance import keys
from token_allowance.limits import Budget, microseconds
from token_allowance.stores.base import Outcome, Store
from token_allowance.stores.memory import MemoryStore
from token_allowance.windows import Window

HOUR = 3600
SLICE = dt.timedelta(minutes=1)
TICK = dt.timedelta(microseconds=1)


def rolling(at: dt.datetime = NOW, amount: int = 100, since: int = 0, **scope: Any) -> Budget:
    """The last hour's budget, as a call of this moment sees it."""
    return budget(
        amount=amount, now=at, since=since, window=Window.ROLLING, rolling_seconds=HOUR, **scope
    )


def slices(store: Store) -> dict[int, tuple[int, int]]:
    """(used, reserved) of each slice that is kept, by number."""
    found = {key: figure for key, figure in counters(store).items() if keys.whole(key)}
    return {int(key.rpartition("|")[2]): figure for key, figure in found.items()}


@dataclass
class Call:
    at: dt.datetime  # by a clock that is right
    clock: dt.datetime  # by that of the caller
    amount: int  # held or charged


class Auditor:
    """A list of calls, and clocks that differ from the truth."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store, self.random = store, random.Random(seed)
        self.feature, self.amount = str(seed), self.random.choice([20, 100])
        self.skew = [self.random.uniform(-0.9, 0.9) * SLICE for _ in range(2)]
        self.now, self.calls = NOW + self.random.random() * SLICE, list[Call]()
        self.open = list[tuple[Call, Any]]()

    def within(self, slices: float) -> int:
        return sum(call.amount for call in self.calls if call.at > self.now - slices * SLICE)

    def call(self) -> None:
        clock = self.now + self.random.choice(self.skew)
        need = self.random.randint(1, self.amount // 2)
        mine = rolling(clock, self.amount, feature=self.feature)
        asked = request(mine, cost=need, at=clock)
        if reserve(self.store, asked).outcome is Outcome.ADMITTED:
            made = Call(self.now, clock, need)
            self.calls.append(made)
            self.open.append((made, asked))
            assert self.within(60) <= self.amount
        else:  # by no more than what lies a little further back
            assert self.within(65) + need > self.amount

    def settle(self) -> None:
        made, asked = self.open.pop(self.random.randrange(len(self.open)))
        if self.random.random() < 0.2:
            self.store.release(unspent(asked))
            made.amount = 0
        else:
            made.amount = self.random.randint(0, made.amount)
            self.store.settle(spent(asked, made.amount))

    def figure(self) -> int:
        """What a clock that is right counts now, by the list."""
        window = rolling(self.now).window
        return sum(call.amount for call in self.calls if window.contains(call.clock))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += self.random.choice([0.01, 0.5, 3, 20]) * self.random.random() * SLICE
            if self.open and self.random.random() < 0.5:
                self.settle()
            else:
                self.call()
        counted = figures(self.store, rolling(self.now, feature=self.feature))
        assert sum(counted[0]) == self.figure()


def test_no_true_window_ever_exceeds_the_amount_by_any_of_two_skewed_clocks(store: Store) -> None:
    """Two hundred runs; protocol 14: naive slices exceeded it in every one of them."""
    for seed in range(200):
        Auditor(store, seed).run(24)


def test_a_greedy_caller_gets_nineteen_twentieths_of_the_amount_in_each_length(
    store: Store,
) -> None:
    """The price of slices: what is spent comes back up to three of sixty slices late."""
    at, got = NOW, 0
    while at < NOW + dt.timedelta(hours=4):
        if reserve(store, request(rolling(at, 20), cost=1, at=at)).outcome is Outcome.ADMITTED:
            got += 1
        at += SLICE / 2
    assert got >= 4 * 20 * 0.95


def test_what_is_spent_comes_back_at_the_moment_the_refusal_names(store: Store) -> None:
    later = NOW + dt.timedelta(minutes=20)
    charge(store, rolling(), cost=70, at=NOW)
    charge(store, rolling(later), cost=20, at=later)
    moments = []
    for need in (11, 30, 81):
        decision = reserve(store, request(rolling(later), cost=need, at=later))
        assert decision.rooms[0].used == 90
        moments.append(decision.rooms[0].resets_at(need))
    first, second, third = moments
    assert first is not None
    assert first == second == NOW + 63 * SLICE  # NOW is the start of a slice
    assert third == later + 63 * SLICE
    early = first - TICK
    assert refused_by(reserve(store, request(rolling(early), cost=11, at=early)))
    assert figures(store, rolling(early), rolling(first)) == [(90, 0), (20, 0)]
    assert reserve(store, request(rolling(first), cost=80, at=first)).outcome is Outcome.ADMITTED


def test_a_budget_shows_when_the_first_of_it_comes_back(store: Store) -> None:
    assert store.usage([rolling()])[0].resets_at() is None
    charge(store, rolling(), cost=10)
    assert store.usage([rolling()])[0].resets_at() == NOW + 63 * SLICE


def test_settling_moves_the_slice_of_the_reservation(store: Store) -> None:
    asked = request(rolling(), cost=60)
    reserve(store, asked)
    later = NOW + dt.timedelta(minutes=50)
    assert reserve(store, request(rolling(later), cost=40, at=later)).outcome is Outcome.ADMITTED
    assert refused_by(reserve(store, request(rolling(later), cost=1, at=later)))
    store.settle(spent(asked, 35))
    assert figures(store, rolling(later)) == [(35, 40)]
    gone = NOW + 63 * SLICE
    assert figures(store, rolling(gone)) == [(0, 40)]
    assert store.rebuild(later) == []


@pytest.mark.parametrize("minutes", [64, 200])  # behind the tail, and no longer kept
def test_a_settle_behind_the_tail_changes_nothing_that_counts(store: Store, minutes: int) -> None:
    asked, held = request(rolling(), cost=60), request(rolling(), cost=20)
    for call in (asked, held):
        reserve(store, call)
    later = NOW + dt.timedelta(minutes=minutes)
    charge(store, rolling(later), cost=95, at=later)
    store.settle(spent(asked, 500))
    let_pass(store, 601)
    assert store.expire(later, charge=True) == 1
    assert figures(store, rolling(later)) == [(95, 0)]
    assert refused_by(reserve(store, request(rolling(later), cost=6, at=later)))
    assert store.rebuild(later) == []


def test_slices_that_no_question_is_about_any_more_are_deleted(store: Store) -> None:
    if isinstance(store, MemoryStore):
        return  # keeps everything: it lives as long as a test
    for minute in range(0, 400, 20):
        at = NOW + dt.timedelta(minutes=minute)
        charge(store, rolling(at), cost=1, at=at)
    assert len(slices(store)) == 7


def test_a_clock_that_is_far_ahead_deletes_nothing(store: Store) -> None:
    now = dt.datetime.now(dt.UTC)
    charge(store, rolling(now), cost=60, at=now)
    ahead = now + dt.timedelta(days=400)
    charge(store, rolling(ahead), cost=100, at=ahead)
    assert figures(store, rolling(now), rolling(ahead)) == [(60, 0), (100, 0)]


def test_a_rolling_limit_made_in_mid_window_counts_what_the_ledger_holds(store: Store) -> None:
    for minutes, cost in ((90, 50), (63, 7), (62, 20), (10, 4)):
        charge(store, cost=cost, at=NOW - dt.timedelta(minutes=minutes))
    in_flight = request(cost=30, at=NOW - dt.timedelta(minutes=30))
    reserve(store, in_flight)
    made = rolling(since=microseconds(NOW))
    assert figures(store, made) == [(24, 30)]
    assert store.usage([made])[0].resets_at() == NOW + SLICE
    assert refused_by(reserve(store, request(made, cost=47))) == [made]
    assert reserve(store, request(made, cost=46)).outcome is Outcome.ADMITTED
    store.settle(spent(in_flight, 11))
    assert figures(store, made) == [(35, 46)]
    half = NOW + dt.timedelta(minutes=33)  # what was in flight has left by then
    assert figures(store, rolling(half, since=made.since)) == [(4, 46)]
    assert store.rebuild(NOW) == []


def test_case_c66_thirty_days_are_not_a_month(store: Store) -> None:
    made, february = (dt.datetime(2026, 1, 15, 10, tzinfo=dt.UTC),
                      dt.datetime(2026, 2, 1, tzinfo=dt.UTC))  # fmt: skip
    rule: dict[str, Any] = {"window": Window.ROLLING, "rolling_seconds": 2_592_000}
    both = [budget(now=made, window=Window.MONTH), budget(now=made, **rule)]
    charge(store, *both, cost=400, at=made)
    month, days = (budget(now=february, window=Window.MONTH), budget(now=february, **rule))
    assert figures(store, month, days) == [(0, 0), (400, 0)]


def test_a_refusal_by_another_budget_moves_no_slice(store: Store) -> None:
    day, hour = budget("tokens", 5), rolling(tenant="acme")
    assert refused_by(reserve(store, request(day, hour, cost=10, tokens=6))) == [day]
    assert all(figure == (0, 0) for figure in counters(store).values())
    day = budget("tokens", 9)
    assert reserve(store, request(day, hour, cost=10, tokens=6)).outcome is Outcome.ADMITTED
    assert figures(store, day, hour) == [(0, 6), (0, 10)]


def test_a_lost_rolling_counter_is_seeded_slice_by_slice(store: Store) -> None:
    since = microseconds(NOW)
    earlier = NOW - dt.timedelta(minutes=40)
    charge(store, rolling(earlier, since=since), cost=30, at=earlier)
    charge(store, rolling(since=since), cost=5)
    kept = slices(store)
    lose(store, rolling())
    again = rolling(since=since + 1)
    assert figures(store, again) == [(35, 0)]
    assert refused_by(reserve(store, request(again, cost=66))) == [again]
    assert {number: slices(store)[number] for number in kept} == kept


def test_a_call_the_store_never_saw_is_charged_to_its_slice(store: Store) -> None:
    charge(store, rolling(), cost=5)
    later = NOW + dt.timedelta(minutes=9)
    unseen = request(rolling(later), cost=20, at=later)
    assert store.settle(spent(unseen, 17)) is Outcome.LATE
    assert store.settle(spent(unseen, 17)) is Outcome.REPEAT
    assert figures(store, rolling(later)) == [(22, 0)]
    assert store.rebuild(later) == []


def test_rebuilding_corrects_a_slice(store: Store) -> None:
    charge(store, rolling(), cost=30)
    name = rolling().held_in
    tamper(store, name, used=3)
    drifts = store.rebuild(NOW)
    assert [(drift.key, drift.used) for drift in drifts] == [(rolling().key, (3, 30))]
    assert store.rebuild(NOW) == []


def test_an_extension_holds_in_the_slice_of_its_reservation(store: Store) -> None:
    asked = request(rolling(), cost=40)
    reserve(store, asked)
    later = NOW + dt.timedelta(minutes=30)
    charge(store, rolling(later), cost=50, at=later)

    def more(cost: int) -> Any:
        return store.extend(
            replace(request(*asked.budgets, cost=cost, calls=0, at=later), id=asked.id)
        )

    assert refused_by(more(11)) == [rolling()]
    assert more(10).outcome is Outcome.EXTENDED
    assert figures(store, rolling(later), rolling(NOW + 63 * SLICE)) == [(50, 50), (50, 0)]
    store.settle(spent(asked, 12))
    assert figures(store, rolling(later)) == [(62, 0)]
    assert store.rebuild(later) == []


def test_many_threads_never_exceed_a_rolling_budget(store: Store) -> None:
    def work(thread: int) -> int:
        admitted = 0
        for step in range(15):
            at = NOW + (thread - 4) * dt.timedelta(seconds=13) + step * dt.timedelta(seconds=2)
            asked = request(rolling(at), budget(amount=10**6), cost=3, at=at)
            if reserve(store, asked).outcome is Outcome.ADMITTED:
                admitted += 1
                if step % 2:
                    store.settle(spent(asked, 3))
        return admitted

    with ThreadPoolExecutor(8) as pool:
        admitted = sum(pool.map(work, range(8)))
    assert admitted == 33  # of 100, three at a time
    assert sum(figures(store, rolling())[0]) == 99
    assert store.rebuild(NOW) == []
