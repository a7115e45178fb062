"""Rolling windows as arithmetic: slices by absolute number, and their lengths in words."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from token_allowance import keys, rolling
from token_allowance.admin import lengths
from token_allowance.limits import Limit, open_budget
from token_allowance.windows import Window

NOW = dt.datetime(2026, 3, 4, 12, 30, tzinfo=dt.UTC)
DAY = 86_400
lengths_in_seconds = st.integers(rolling.SHORTEST_SECONDS, rolling.LONGEST_SECONDS)
moments = st.datetimes(dt.datetime(1960, 1, 1), dt.datetime(2200, 1, 1)).map(  # noqa: DTZ001
    lambda moment: moment.replace(tzinfo=dt.UTC)
)


@given(lengths_in_seconds, moments)
def test_each_moment_lies_in_one_slice(seconds: int, moment: dt.datetime) -> None:
    number = rolling.slice_at(seconds, moment)
    assert rolling.start(seconds, number) <= moment < rolling.start(seconds, number + 1)


@given(lengths_in_seconds, moments)
def test_what_is_counted_reaches_back_at_least_the_whole_length(
    seconds: int, moment: dt.datetime
) -> None:
    counted = rolling.counted(seconds, rolling.slice_at(seconds, moment))
    length = dt.timedelta(seconds=seconds)
    assert counted.start is not None
    assert length <= moment - counted.start <= length * 1.05 + dt.timedelta(milliseconds=1)
    assert counted.contains(moment)


@given(lengths_in_seconds, moments)
def test_a_slice_leaves_when_it_is_counted_no_more(seconds: int, moment: dt.datetime) -> None:
    number = rolling.slice_at(seconds, moment)
    leaves = rolling.leaves_at(seconds, number)
    before = rolling.slice_at(seconds, leaves - dt.timedelta(microseconds=1))
    assert number in rolling.numbers(before)
    assert number not in rolling.numbers(rolling.slice_at(seconds, leaves))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (60, "1-minute"),
        (61, "61-second"),
        (5_400, "90-minute"),
        (3_600, "1-hour"),
        (DAY, "24-hour"),
        (2 * DAY, "2-day"),
        (30 * DAY, "30-day"),
    ],
)
def test_a_length_is_said_in_the_largest_unit_that_divides_it(seconds: int, words: str) -> None:
    limit = Limit(window=Window.ROLLING, rolling_seconds=seconds)
    assert limit.adjective == f"rolling {words}"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("24 hours", DAY), ("1 day", DAY), ("30 days", 30 * DAY), ("90minutes", 5_400),
     (" 2 Weeks ", 14 * DAY), ("60 seconds", 60), ("366 days", 366 * DAY)],
)  # fmt: skip
def test_a_length_is_written_in_words(text: str, seconds: int) -> None:
    assert lengths.parsed(text) == seconds
    assert lengths.parsed(lengths.written(seconds)) == seconds


@pytest.mark.parametrize("text", ["1mo", "24h", "month", "1.5 days", "-1 days", "a day", "30"])
def test_case_c66_another_spelling_of_a_length_is_refused_with_the_right_one(text: str) -> None:
    with pytest.raises(ValueError, match="such as 24 hours or 30 days"):
        lengths.parsed(text)


@pytest.mark.parametrize("text", ["59 seconds", "0 days", "367 days", "999999999 weeks"])
def test_a_length_is_a_minute_to_366_days(text: str) -> None:
    with pytest.raises(ValueError, match="60 seconds to 366 days"):
        lengths.parsed(text)


def test_a_slices_key_comes_right_after_its_budgets_and_says_which_one_that_is() -> None:
    limit = Limit(tenant="*", window=Window.ROLLING, rolling_seconds=DAY)
    budget = open_budget(limit, {"tenant": "7"}, NOW)
    other = open_budget(limit, {"tenant": "70"}, NOW)
    assert sorted([other.held_in, other.key, budget.held_in, budget.key]) == [
        other.key, other.held_in, budget.key, budget.held_in,
    ]  # fmt: skip
    assert keys.whole(budget.held_in) == budget.key
    assert keys.whole(budget.key) is None
    assert keys.whole(open_budget(Limit(), {}, NOW).key) is None


def test_the_zone_of_a_rolling_window_does_not_matter() -> None:
    zones = ("UTC", "Asia/Kathmandu")
    limits = [Limit(window=Window.ROLLING, rolling_seconds=DAY, time_zone=zone) for zone in zones]
    assert len({open_budget(limit, {}, NOW).held_in for limit in limits}) == 1


def test_another_length_is_another_rule() -> None:
    each = Limit(tenant="*", window=Window.ROLLING, rolling_seconds=DAY)
    assert Limit(tenant="a", window=Window.ROLLING, rolling_seconds=DAY).overrides(each)
    assert not Limit(tenant="a", window=Window.ROLLING, rolling_seconds=2 * DAY).overrides(each)
