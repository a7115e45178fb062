"""Which hundredth of the callers a call belongs to."""

from __future__ import annotations

from collections import Counter

import pytest
from django.utils import timezone

from token_allowance.stops import SwitchRule, bucket


def test_the_hundredths_are_the_same_in_every_process_and_release() -> None:
    """A change of these numbers would let go whom a running switch stops."""
    assert bucket({"tenant": "acme", "user": "ana"}) == 46
    assert bucket({"tenant": "acme"}) == 26
    assert bucket({"session": "s_2"}) == 69


def test_the_hundredths_hold_as_many_callers_each() -> None:
    found = Counter(bucket({"tenant": "acme", "user": str(n)}) for n in range(20_000))
    assert set(found) == set(range(100))
    assert max(found.values()) < 300


@pytest.mark.parametrize("more", [{"session": "s_1"}, {"feature": "agent"}, {"model": "m"}])
def test_a_user_is_one_caller_in_whatever_session(more: dict[str, str]) -> None:
    ana = {"tenant": "acme", "user": "ana"}
    assert bucket(ana | more) == bucket(ana)


def test_a_user_is_not_the_session_of_the_same_name_nor_that_of_another_tenant() -> None:
    same = [{"user": "7"}, {"session": "7"}, {"tenant": "7"}, {"tenant": "a", "user": "7"}]
    assert len({bucket(values) for values in same}) == 4


@pytest.mark.parametrize(("percent", "stops"), [(1, False), (99, False), (100, True)])
def test_calls_that_name_nobody_are_stopped_by_a_whole_switch_only(
    percent: int, stops: bool
) -> None:
    """They cannot be told apart: a drill for one in a hundred would stop them all."""
    rule = SwitchRule((("feature", "x"),), "drill", None, percent)
    assert rule.stops({"feature": "x", "user": ""}, timezone.now()) is stops
