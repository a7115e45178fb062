"""Adjustments: a budget's counter is the sum of its ledger rows and of these (case C68)."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.stores import (
    NOW,
    alias_of,
    budget,
    charge,
    figures,
    lose,
    refused_by,
    request,
    reserve,
    spent,
)
from token_allowance import conf, entries, rolling
from token_allowance.limits import Budget, microseconds
from token_allowance.models import Adjustment
from token_allowance.money import MAX_MICROS
from token_allowance.stores.base import Adjusted, Outcome, Store
from token_allowance.stores.memory import MemoryStore
from token_allowance.windows import Window

TODAY = microseconds(NOW)
DAY = 86_400
SLICE = dt.timedelta(seconds=DAY // rolling.SLICES)


def adjust(store: Store, of: Budget, amount: int | None, **given: Any) -> Adjusted:
    row = {"id": entries.new_id(), "reason": "refund", "by": "ana", "created_at": NOW}
    return store.adjust(of, amount, row | given)


def written(store: Store) -> list[tuple[str, int]]:
    """(key, amount) of each adjustment row, in order."""
    if isinstance(store, MemoryStore):
        return [(row["key"], row["amount"]) for row in store.adjustments]
    found = Adjustment.objects.using(alias_of(store)).order_by("id")
    return list(found.values_list("key", "amount"))


def rolls(at: dt.datetime = NOW, amount: int = 100, **rule: Any) -> Budget:
    return budget(
        amount=amount, window=Window.ROLLING, rolling_seconds=DAY, now=at, user="u", **rule
    )


def test_c68_a_reset_gives_the_room_back_and_writes_why(store: Store) -> None:
    day = budget(amount=100, tenant="acme", user="u")
    charge(store, day, cost=100)
    done = adjust(store, day, None)
    assert (done.amount, done.room.used, done.room.available) == (-100, 0, 100)
    assert written(store) == [(day.key, -100)]
    assert reserve(store, request(day, cost=100)).outcome is Outcome.ADMITTED
    assert store.rebuild(NOW) == []
    assert figures(store, day) == [(0, 100)]


def test_an_adjustment_row_names_the_budget_the_person_and_the_reason(database: str) -> None:
    tokens = budget("tokens", 10, tenant="acme", user="u", model="m")
    adjust(conf.store(), tokens, 7)
    (row,) = Adjustment.objects.using(database).values()
    assert row["id"].version == 7
    assert {name: value for name, value in row.items() if name != "id"} == {
        "key": tokens.key, "tenant": "acme", "user": "u", "session": "", "feature": "",
        "model": "m", "unit": "tokens", "amount": 7, "reason": "refund", "by": "ana",
        "created_at": NOW,
    }  # fmt: skip


def test_a_reset_leaves_what_is_in_flight(store: Store) -> None:
    day = budget(amount=100)
    charge(store, day, cost=60)
    asked = request(day, cost=30)
    reserve(store, asked)
    assert adjust(store, day, None).room.available == 70
    assert figures(store, day) == [(0, 30)]
    store.settle(spent(asked, 25))
    assert figures(store, day) == [(25, 0)]
    assert store.rebuild(NOW) == []


def test_no_adjustment_takes_off_more_than_was_used(store: Store) -> None:
    day = budget(amount=100)
    charge(store, day, cost=40)
    assert adjust(store, day, -50).amount == -40
    assert figures(store, day) == [(0, 0)]
    assert adjust(store, day, -1).amount == 0
    assert adjust(store, day, None).amount == 0
    assert written(store) == [(day.key, -40)]


def test_an_adjustment_may_fill_a_budget_and_overfill_it(store: Store) -> None:
    day = budget(amount=100)
    done = adjust(store, day, 130)
    assert (done.amount, done.room.used, done.room.available) == (130, 130, 0)
    assert refused_by(reserve(store, request(day, cost=1))) == [day]
    assert adjust(store, day, MAX_MICROS).amount == MAX_MICROS - 130
    assert store.rebuild(NOW) == []


def test_the_same_adjustment_again_changes_nothing(store: Store) -> None:
    day, id = budget(amount=100), entries.new_id()
    charge(store, day, cost=60)
    first = adjust(store, day, -20, id=id)
    charge(store, day, cost=5)
    again = adjust(store, day, -20, id=id)
    assert (first.amount, again.amount) == (-20, -20)
    assert figures(store, day) == [(45, 0)]
    assert written(store) == [(day.key, -20)]


def test_a_budget_that_nothing_has_opened_is_counted_from_the_ledger_first(store: Store) -> None:
    charge(store, cost=88, at=NOW - dt.timedelta(days=1))
    charge(store, cost=12)
    asked = request(cost=6)
    reserve(store, asked)
    made = budget(amount=50, since=TODAY)
    done = adjust(store, made, -2)
    assert (done.amount, done.room.used, done.room.reserved) == (-2, 10, 6)
    store.settle(spent(asked, 6))
    assert figures(store, made) == [(16, 0)]
    assert store.rebuild(NOW) == []


def test_a_lost_counter_is_seeded_with_its_adjustments(store: Store) -> None:
    day = budget(amount=100, since=TODAY)
    charge(store, day, cost=90)
    adjust(store, day, -60)
    lose(store, day)
    assert figures(store, day) == [(30, 0)]
    assert refused_by(reserve(store, request(day, cost=71))) == [day]
    assert reserve(store, request(day, cost=70)).outcome is Outcome.ADMITTED
    assert figures(store, day) == [(30, 70)]


def test_an_adjustment_is_of_one_window_and_of_one_budget(store: Store) -> None:
    day, month = budget(amount=100), budget(amount=500, window=Window.MONTH)
    charge(store, day, month, cost=90)
    adjust(store, day, None)
    assert figures(store, day, month) == [(0, 0), (90, 0)]
    at = NOW + dt.timedelta(days=1)
    tomorrow = budget(amount=100, now=at)
    charge(store, tomorrow, month, cost=10, at=at)
    assert figures(store, tomorrow, day, month) == [(10, 0), (0, 0), (100, 0)]
    assert store.rebuild(NOW) == []


def test_more_on_a_rolling_budget_is_counted_in_the_slice_of_now(store: Store) -> None:
    now = rolls()
    assert adjust(store, now, 30).room.slices == ((now.slice, 30),)
    assert written(store) == [(now.held_in, 30)]
    assert figures(store, rolls(NOW + 62 * SLICE), rolls(NOW + 63 * SLICE)) == [(30, 0), (0, 0)]
    assert store.rebuild(NOW) == []


def test_what_a_rolling_budget_gives_back_is_not_given_twice(store: Store) -> None:
    """Taken off the slice of now alone, it would still be taken off when the old slices left."""
    early, late = NOW - 20 * SLICE, NOW - 5 * SLICE
    charge(store, rolls(early), cost=40, at=early)
    charge(store, rolls(late), cost=60, at=late)
    assert refused_by(reserve(store, request(rolls(), cost=1))) == [rolls()]
    done = adjust(store, rolls(), -70)
    assert (done.amount, done.room.used) == (-70, 30)
    assert [part for part in done.room.slices if part[1]] == [(rolls(early).slice, 30)]
    assert written(store) == [(rolls(late).held_in, -60), (rolls(early).held_in, -10)]
    after = early + 63 * SLICE
    assert figures(store, rolls(after)) == [(0, 0)]
    assert adjust(store, rolls(), None).amount == -30
    assert figures(store, rolls(), rolls(after)) == [(0, 0), (0, 0)]
    assert store.rebuild(NOW) == []


def test_a_rolling_budget_is_rebuilt_and_seeded_with_its_adjustments(store: Store) -> None:
    charge(store, rolls(NOW - SLICE), cost=40, at=NOW - SLICE)
    adjust(store, rolls(), -15)
    adjust(store, rolls(), 5)
    assert store.rebuild(NOW) == []
    anew = rolls(since=TODAY)
    assert figures(store, anew) == [(30, 0)]
    assert refused_by(reserve(store, request(anew, cost=71))) == [anew]
    assert reserve(store, request(anew, cost=70)).outcome is Outcome.ADMITTED
    assert figures(store, anew) == [(30, 70)]


@pytest.mark.parametrize("rolling_budget", [False, True], ids=["day", "rolling"])
def test_adjusting_and_settling_at_once_lose_nothing(database: str, rolling_budget: bool) -> None:
    store = conf.store()
    of = rolls(amount=10_000) if rolling_budget else budget(amount=10_000, user="u")

    def work(place: int) -> None:
        if place % 4:
            charge(store, of, cost=10)
        else:
            adjust(store, of, 3)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(40)))
    assert figures(store, of) == [(30 * 10 + 10 * 3, 0)]
    assert store.rebuild(NOW) == []
