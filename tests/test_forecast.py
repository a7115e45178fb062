"""When a budget is spent at its present pace: of two paces the slower is believed."""

from __future__ import annotations

import pytest

from token_allowance.alerts.pace import Forecast, Used, forecast

HOUR, DAY = 3600, 24 * 3600


def used(
    part: int, *, elapsed: int, length: int | None = DAY, hour: int = 0, moment: int = 0
) -> Used:
    """Of a budget of 1,000."""
    left = None if length is None else length - elapsed
    return Used(1_000, part, elapsed, left, last_hour=hour, last_moment=moment)


def test_a_steady_pace_above_the_budget_is_told_with_its_moment():
    """600 in 12 hours, and 50 an hour now: the other 400 take 8 hours."""
    assert forecast(used(600, elapsed=12 * HOUR, hour=50)) == Forecast(8 * HOUR, soon=False)


def test_a_steady_pace_within_the_budget_is_not():
    assert forecast(used(400, elapsed=12 * HOUR, hour=33)) is None


@pytest.mark.parametrize(("part", "hour"), [(600, 10), (300, 200)], ids=["slower now", "burst"])
def test_one_of_the_two_paces_alone_is_not_believed(part, hour):
    assert forecast(used(part, elapsed=12 * HOUR, hour=hour)) is None


def test_it_is_urgent_when_the_last_minutes_go_as_fast_as_the_hour():
    fast = used(600, elapsed=12 * HOUR, hour=450, moment=50)
    assert forecast(fast) == Forecast(400 * HOUR // 450, soon=True)
    assert forecast(used(600, elapsed=12 * HOUR, hour=450, moment=20)) == Forecast(
        8 * HOUR, soon=False
    )
    assert forecast(used(600, elapsed=12 * HOUR, hour=50, moment=50)) == Forecast(
        8 * HOUR, soon=False
    )


def test_what_ends_before_it_is_spent_is_not_urgent():
    assert forecast(used(600, elapsed=DAY - 600, hour=450, moment=50)) is None


def test_early_in_a_window_and_in_a_budget_nothing_is_told_unless_it_is_urgent():
    assert forecast(used(300, elapsed=2 * HOUR, hour=150)) is None
    assert forecast(used(300, elapsed=3 * HOUR, hour=150)) == Forecast(700 * HOUR // 100, False)
    assert forecast(used(240, elapsed=3 * HOUR, hour=150)) is None
    urgent = used(400, elapsed=HOUR // 2, hour=400, moment=100)
    assert forecast(urgent) == Forecast(2700, soon=True)
    assert forecast(used(400, elapsed=600, hour=400, moment=400)) is None


def test_a_budget_that_never_ends_is_told_of_when_it_is_urgent():
    steady = used(900, elapsed=HOUR, length=None, hour=90, moment=1)
    assert forecast(steady) is None
    fast = used(900, elapsed=HOUR, length=None, hour=110, moment=10)
    assert forecast(fast) == Forecast(100 * HOUR // 110, soon=True)


def test_of_windows_of_an_hour_and_of_spent_budgets_nothing_is_told():
    assert forecast(used(600, elapsed=HOUR // 2, length=HOUR, hour=600, moment=100)) is None
    assert forecast(used(1_000, elapsed=12 * HOUR, hour=500, moment=100)) is None
