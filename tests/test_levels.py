"""Levels of a limit as integers, and what becomes of a column that holds no levels."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.db import connections
from hypothesis import given
from hypothesis import strategies as st

from tests.stores import hold, spend
from token_allowance import allowance, levels
from token_allowance.exceptions import AllowanceExceeded, TooLarge
from token_allowance.increases import Increase
from token_allowance.limits import Attribution, Limit, Unit, apply
from token_allowance.models import Limit as LimitRow
from token_allowance.money import MAX_MICROS

NOW = dt.datetime(2026, 11, 30, 12, 0, tzinfo=dt.UTC)


@given(st.integers(0, MAX_MICROS), st.integers(1, 120))
def test_a_level_is_reached_exactly_when_a_hundred_times_the_use_says_so(
    amount: int, percent: int
) -> None:
    least = levels.reached_from(amount, percent)
    assert least * 100 >= percent * amount
    assert least == 0 or (least - 1) * 100 < percent * amount


@given(st.integers(0, MAX_MICROS), st.integers(100, 120))
def test_a_stop_is_the_part_that_is_whole_and_no_more_than_a_counter_holds(
    amount: int, percent: int
) -> None:
    stop = Limit(amount=amount, hard_stop_percent=percent).stop_amount
    assert amount <= stop <= MAX_MICROS
    assert stop == MAX_MICROS or stop * 100 <= amount * percent < (stop + 1) * 100


def test_an_increase_raises_the_amount_and_so_each_of_its_levels() -> None:
    more = Increase(amount=100, until=NOW + dt.timedelta(hours=1))
    limit = Limit(amount=100, hard_stop_percent=110, degrade_at=50, increases=(more,))
    raised = limit.raised({}, NOW)
    assert (raised.amount, raised.stop_amount, raised.degrade_amount) == (200, 220, 100)
    assert limit.raised({}, NOW + dt.timedelta(hours=1)).stop_amount == 110


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"amount": 110}, {"amount": 100, "hard_stop_percent": 120}),
        ({"amount": 100, "degrade_at": 50}, {"amount": 100}),
        ({"amount": 100}, {"amount": 100, "degrade_at": None}),
    ],
    ids=["the lower stop", "the lower level", "some level"],
)
def test_of_two_limits_with_one_counter_the_stricter_decides(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    stricter = Limit(tenant="acme", user="*", **one)
    rules = [stricter, Limit(tenant="*", user="ana", **other)]
    who = Attribution(tenant="acme", user="ana")
    for order in (rules, rules[::-1]):
        budgets, _ = apply(order, who, model="m", plan="", now=NOW)
        assert [budget.limit for budget in budgets] == [stricter]


HOSTILE = [
    "{}", "null", "true", '"70"', "[70, null]", "[true]", "[0]", "[121]", "[7.5]", "[[70]]",
    '["70"]', "[" * 900 + "]" * 900, "[1e400]", "[70, " + "9" * 5000 + "]",
]  # fmt: skip


@pytest.mark.parametrize("written", HOSTILE, ids=lambda text: text[:12])
def test_a_column_without_levels_breaks_no_call_and_tells_at_the_usual_ones(
    database: str, written: str
) -> None:
    row = LimitRow.objects.using(database).create(unit="tokens", amount=1000, window="total")
    with connections[database].cursor() as cursor:
        cursor.execute(
            "UPDATE token_allowance_limit SET notify_at = %s WHERE id = %s", [written, row.pk]
        )
    spend(10)
    (seen,) = allowance.remaining()
    assert (seen.used, seen.limit.notify_at) == (10, (70, 90, 100))


def test_levels_are_loaded_sorted_and_each_once(database: str) -> None:
    LimitRow.objects.using(database).create(
        unit="tokens", amount=1000, window="total",
        notify_at=[90, 50, 90], degrade_at=None, hard_stop_percent=110,
    )  # fmt: skip
    (seen,) = allowance.remaining()
    assert seen.limit.notify_at == (50, 90)
    assert seen.limit.degrade_at is None
    assert seen.limit.hard_stop_percent == 110


@pytest.mark.parametrize(
    ("used", "state"),
    [
        (499, "ok"), (500, "warning"), (799, "warning"), (800, "degraded"), (1000, "degraded"),
        (1099, "degraded"), (1100, "blocked"),
    ],
)  # fmt: skip
def test_a_budget_is_in_the_state_of_its_own_levels(database: str, used: int, state: str) -> None:
    LimitRow.objects.using(database).create(
        unit="tokens", amount=1000, window="total",
        notify_at=[50], degrade_at=80, hard_stop_percent=110,
    )  # fmt: skip
    spend(used)
    (seen,) = allowance.remaining()
    assert (seen.state, seen.amount, seen.available) == (state, 1000, 1100 - used)
    if state == "blocked":
        with pytest.raises(AllowanceExceeded):
            allowance.admit()
    else:
        allowance.admit()


def test_without_levels_a_budget_is_well_until_it_is_blocked(database: str) -> None:
    LimitRow.objects.using(database).create(
        unit="tokens", amount=1000, window="total", notify_at=[], degrade_at=None
    )
    spend(999)
    assert [seen.state for seen in allowance.remaining()] == ["ok"]
    spend(1)
    assert [seen.state for seen in allowance.remaining()] == ["blocked"]


def test_a_refusal_at_a_hard_stop_shows_the_amount_and_has_no_room(database: str) -> None:
    LimitRow.objects.using(database).create(
        unit="tokens", amount=1000, window="total", hard_stop_percent=120
    )
    with pytest.raises(TooLarge):
        hold(1201)
    held = hold(1200)
    with pytest.raises(AllowanceExceeded) as caught:
        hold(1)
    assert (caught.value.reason, caught.value.amount) == ("held", 1000)
    assert caught.value.available == 0
    held.release()


def test_levels_are_percentages() -> None:
    assert levels.are_levels([70, 90, 100])
    assert levels.are_levels(())
    assert json.loads(json.dumps(levels.NOTIFY_AT)) == [70, 90, 100]
    assert not any(map(levels.are_levels, ([True], [70.0], "70", None, [0], [121], {70: 1})))
    assert Limit(unit=Unit.CALLS, amount=0).stop_amount == 0
