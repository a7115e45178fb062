"""The levels of a budget in every store: where it asks for the cheaper plan, and where it stops."""

from __future__ import annotations

import datetime as dt
import json
import random
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import callers, climbers
from tests.stores import (
    NOW,
    budget,
    charge,
    figures,
    refused_by,
    request,
    reserve,
    row,
    rows,
    spent,
    tamper,
    unspent,
    version,
)
from tests.test_store_concurrency import ask, at_once
from token_allowance import conf
from token_allowance import rolling as rolling_windows
from token_allowance.limits import Budget, Unit, cap_budget, microseconds
from token_allowance.money import MAX_MICROS
from token_allowance.stores.base import Outcome, Request, Store
from token_allowance.stores.memory import MemoryStore
from token_allowance.windows import Window


@pytest.fixture(scope="module")
def climbing() -> Iterator[callers.Callers]:
    with callers.running("tests.climbers") as made:
        yield made


def full(*budgets: Budget, **given: Any) -> Request:
    """The full plan of a call that has a cheaper one."""
    return request(*budgets, may_degrade=True, **given)


@pytest.mark.parametrize(
    ("amount", "degrade_at", "below", "level"),
    [
        (1000, 90, 899, 900),
        (999, 90, 899, 900),  # 90 % are 899.1
        (1, 90, 0, 1),
        (1000, 1, 9, 10),
        (10, 120, 11, 12),
        (MAX_MICROS, 90, 8106479329266891, 8106479329266892),
    ],
)
def test_from_the_very_level_on_the_full_plan_is_not_taken(
    store: Store, amount: int, degrade_at: int, below: int, level: int
) -> None:
    assert below * 100 < degrade_at * amount <= level * 100
    day = budget(amount=amount, degrade_at=degrade_at, hard_stop_percent=120)
    charge(store, day, cost=below)
    assert store.release(unspent(admitted(store, full(day)))) is Outcome.RELEASED
    charge(store, day, cost=level - below)
    before = figures(store, day)
    decision = reserve(store, full(day))
    assert decision.outcome is Outcome.DEGRADE
    assert [(room.budget, room.used, room.reserved) for room in decision.rooms] == [(day, level, 0)]
    assert figures(store, day) == before == [(level, 0)]
    assert reserve(store, request(day)).outcome is Outcome.ADMITTED


def admitted(store: Store, asked: Request) -> Request:
    assert reserve(store, asked).outcome is Outcome.ADMITTED
    return asked


def test_what_is_only_reserved_does_not_degrade(store: Store) -> None:
    day = budget(amount=100)
    held = admitted(store, full(day, cost=95))
    last = admitted(store, full(day, cost=5))
    store.settle(spent(held, 89))
    store.settle(spent(last, 0))
    assert reserve(store, full(day, cost=1)).outcome is Outcome.ADMITTED
    assert figures(store, day) == [(89, 1)]


def test_nothing_of_a_degraded_request_stays(store: Store) -> None:
    user, everybody = budget(amount=100, user="u"), budget("tokens", 10**6)
    charge(store, user, everybody, cost=90, tokens=5)
    asked = full(user, everybody, cost=1, tokens=7)
    assert reserve(store, asked).outcome is Outcome.DEGRADE
    assert figures(store, user, everybody) == [(90, 0), (5, 0)]
    assert asked.id not in rows(store)
    cheaper = replace(asked, may_degrade=False)
    assert reserve(store, cheaper).outcome is Outcome.ADMITTED
    assert store.settle(spent(cheaper, 1, 7)) is Outcome.SETTLED
    assert store.rebuild(NOW) == []


def test_a_repeat_stays_a_repeat_though_the_level_is_reached(store: Store) -> None:
    day = budget(amount=100)
    asked = full(day, cost=1, key="k", tenant="acme")
    admitted(store, asked)
    charge(store, day, cost=95)
    same_key = full(day, cost=1, key="k", tenant="acme")
    assert reserve(store, same_key).outcome is Outcome.REPEAT
    if not isinstance(store, MemoryStore):  # Redis says so of the very same request
        assert reserve(store, asked).outcome in (Outcome.REPEAT, Outcome.ADMITTED)
    assert figures(store, day) == [(95, 1)]


def test_the_cheaper_plan_is_asked_for_before_the_full_one_is_refused(store: Store) -> None:
    day, calls = budget(amount=100), budget("calls", 3, tenant="acme", degrade_at=None)
    charge(store, day, calls, cost=92)
    asked = full(day, calls, cost=20)
    assert reserve(store, asked).outcome is Outcome.DEGRADE
    assert refused_by(reserve(store, replace(asked, may_degrade=False))) == [day]
    assert reserve(store, request(day, calls, cost=2)).outcome is Outcome.ADMITTED


def test_below_its_level_a_request_that_does_not_fit_is_refused(store: Store) -> None:
    day = budget(amount=100)
    charge(store, day, cost=50)
    assert refused_by(reserve(store, full(day, cost=60))) == [day]


def test_an_old_policy_is_said_before_the_level(store: Store) -> None:
    day = budget(amount=100)
    charge(store, day, cost=95)
    old = replace(full(day, cost=1), version=version(store) - 1)
    said = Outcome.STALE if store.checks_version else Outcome.DEGRADE
    assert store.reserve(old).outcome is said


def test_a_budget_that_has_to_be_counted_first_degrades_by_what_the_ledger_has(
    store: Store,
) -> None:
    others = budget(amount=10**6, tenant="acme")
    charge(store, others, cost=95, user="u")
    made_later = budget(amount=100, user="u", since=microseconds(NOW))
    assert reserve(store, full(others, made_later, cost=1)).outcome is Outcome.DEGRADE


@pytest.mark.parametrize(
    "soft",
    [
        lambda: (budget(amount=100, observe=True), {}),
        lambda: (budget(amount=100, enforced=False), {}),
        lambda: (budget(amount=100), {"observe": True}),
        lambda: (budget(amount=100, degrade_at=None), {}),
    ],
    ids=["an observing limit", "an overridden limit", "an observing call", "no level"],
)
def test_a_budget_that_cannot_refuse_or_has_no_level_degrades_nothing(
    store: Store, soft: Callable[[], tuple[Budget, dict[str, Any]]]
) -> None:
    day, given = soft()
    charge(store, day, cost=95)
    assert reserve(store, full(day, cost=1, **given)).outcome is Outcome.ADMITTED


def test_a_cap_of_one_job_degrades_nothing(store: Store) -> None:
    cap = cap_budget("job/", Unit.COST, 100, since=0, untouched=True)

    def of_the_job(cost: int) -> Request:
        made = full(cost=cost)
        row = made.row | {"run_path": "job/", "holds": [[cap.key, "cost", cost]]}
        return replace(made, budgets=(cap,), row=row)

    before = admitted(store, of_the_job(95))
    assert store.settle(spent(before, 95)) is Outcome.SETTLED
    assert reserve(store, of_the_job(5)).outcome is Outcome.ADMITTED


def test_a_lowered_limit_degrades_at_once_and_a_raised_one_no_more(store: Store) -> None:
    charge(store, budget(amount=100), cost=50)
    assert reserve(store, full(budget(amount=100), cost=1)).outcome is Outcome.ADMITTED
    assert reserve(store, full(budget(amount=55), cost=1)).outcome is Outcome.DEGRADE
    assert reserve(store, full(budget(amount=200), cost=1)).outcome is Outcome.ADMITTED


def rolling(hours: float, **rule: Any) -> Budget:
    at = NOW + dt.timedelta(hours=hours)
    return budget(amount=100, now=at, window=Window.ROLLING, rolling_seconds=7200, **rule)


def test_a_rolling_window_degrades_by_all_that_it_counts_and_no_longer(store: Store) -> None:
    charge(store, rolling(0), cost=50)
    charge(store, rolling(1), cost=40, at=NOW + dt.timedelta(hours=1))
    soon, later = NOW + dt.timedelta(hours=1.5), NOW + dt.timedelta(hours=2.5)
    decision = reserve(store, full(rolling(1.5), cost=1, at=soon))
    assert decision.outcome is Outcome.DEGRADE
    assert [room.used for room in decision.rooms] == [90]
    assert reserve(store, full(rolling(2.5), cost=1, at=later)).outcome is Outcome.ADMITTED


@pytest.mark.parametrize(
    ("amount", "percent", "stop"), [(100, 120, 120), (999, 110, 1098), (100, 100, 100)]
)
def test_a_hard_stop_above_the_amount_admits_up_to_it(
    store: Store, amount: int, percent: int, stop: int
) -> None:
    day = budget(amount=amount, hard_stop_percent=percent)
    charge(store, day, cost=stop - 1)
    assert store.usage([day])[0].available == 1
    assert refused_by(reserve(store, request(day, cost=2))) == [day]
    charge(store, day, cost=1)
    refused = reserve(store, request(day, cost=1))
    assert refused_by(refused) == [day]
    assert refused.rooms[0].available == 0
    assert store.rebuild(NOW) == []


def test_a_hard_stop_never_passes_what_a_counter_can_hold(store: Store) -> None:
    day = budget(amount=MAX_MICROS, hard_stop_percent=120)
    charge(store, day, cost=MAX_MICROS)
    assert refused_by(reserve(store, request(day, cost=1))) == [day]


def test_a_rolling_window_frees_room_by_its_hard_stop(store: Store) -> None:
    first, second = rolling(0, hard_stop_percent=120), rolling(1, hard_stop_percent=120)
    charge(store, first, cost=20)
    charge(store, second, cost=100, at=second.window.start or NOW)
    refused = reserve(store, request(second, cost=20))
    assert refused_by(refused) == [second]
    room = refused.rooms[0]
    assert room.available == 0
    assert first.slice is not None
    assert room.resets_at(20) == rolling_windows.leaves_at(7200, first.slice)


def test_an_extension_is_held_up_to_the_hard_stop(store: Store) -> None:
    day = budget(amount=100, hard_stop_percent=110)
    asked = admitted(store, request(day, cost=100))
    more = replace(asked, amounts=replace(asked.amounts, cost_micros=10, calls=0))
    assert store.extend(more).outcome is Outcome.EXTENDED
    assert refused_by(store.extend(more)) == [day]
    assert figures(store, day) == [(0, 110)]


def test_of_many_at_once_no_full_plan_is_taken_once_the_level_is_reached(store: Store) -> None:
    """Each settles before it is known to have ended: who asks later than that sees its spend."""
    day, everybody = budget(amount=1000, tenant="acme"), budget("calls", 10**6, degrade_at=None)
    chance = random.Random(5)
    settled: list[int] = []
    wrong: list[tuple[int, Outcome]] = []

    def call(number: int) -> Outcome:
        known = sum(settled)
        outcome = ask(store, asked := full(day, everybody, cost=20))
        if known >= 900 and outcome is not Outcome.DEGRADE:
            wrong.append((known, outcome))
        if outcome is Outcome.ADMITTED:
            store.settle(spent(asked, cost := chance.randint(5, 20)))
            settled.append(cost)
        return outcome

    outcomes = Tally(at_once(call, range(150), 8))
    assert wrong == []
    assert outcomes[Outcome.DEGRADE] > 0
    assert 900 <= sum(settled) < 900 + 8 * 20
    assert figures(store, day) == [(sum(settled), 0)]


def test_four_processes_take_no_full_plan_once_the_level_is_reached(
    database: str, climbing: callers.Callers, tmp_path: Path
) -> None:
    answers = [tmp_path / f"{number}.json" for number in range(4)]
    for answer in answers:
        climbing.start(kind="climb", answer=str(answer))
    deadline = time.monotonic() + 60
    while not all(answer.exists() for answer in answers):
        assert time.monotonic() < deadline, "the climbers have not come to the level"
        time.sleep(0.02)
    outcomes = sum((Tally(json.loads(answer.read_text())) for answer in answers), Tally[str]())
    assert outcomes.keys() <= {"before admitted", "before degrade", "after degrade"}
    assert outcomes["after degrade"] > 0
    day = budget(amount=climbers.AMOUNT, tenant="acme")
    ((used, reserved),) = figures(conf.store(), day)
    assert climbers.LEVEL <= used < climbers.LEVEL + 4 * climbers.COST
    assert reserved == 0


def test_the_level_is_by_the_counter_as_it_is_when_the_call_is_taken(store: Store) -> None:
    day = budget(amount=100)
    charge(store, day, cost=1)
    tamper(store, day.key, used=95)
    assert reserve(store, full(day, cost=1)).outcome is Outcome.DEGRADE
    tamper(store, day.key, used=1)
    kept = admitted(store, full(day, cost=1))
    assert row(store, kept)["state"] == "reserved"
