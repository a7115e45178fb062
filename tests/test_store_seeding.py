"""Counters that are missing, stale or wrong: the ledger says what they should be."""

from __future__ import annotations

import datetime as dt

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
from token_allowance.limits import microseconds
from token_allowance.stores.base import Drift, Outcome, Store
from token_allowance.windows import Window

TODAY = microseconds(NOW)  # a budget tracked since now may have been spent from before


def test_c61_a_lost_counter_is_seeded_before_anyone_is_admitted(store: Store) -> None:
    day = budget(amount=30_000_000, since=TODAY)
    charge(store, day, cost=29_500_000)
    lose(store, day)
    assert figures(store, day) == [(29_500_000, 0)]
    assert refused_by(reserve(store, request(day, cost=1_000_000))) == [day]
    assert reserve(store, request(day, cost=400_000)).outcome is Outcome.ADMITTED
    assert figures(store, day) == [(29_500_000, 400_000)]


def test_a_lost_counter_is_seeded_with_what_is_in_flight(store: Store) -> None:
    day, tokens = budget(amount=100, since=TODAY), budget("tokens", 100, tenant="acme")
    open_call = request(day, tokens, cost=40, tokens=9)
    reserve(store, open_call)
    lose(store, day)
    assert refused_by(reserve(store, request(day, cost=61))) == [day]
    assert figures(store, day, tokens) == [(0, 40), (0, 9)]
    store.settle(spent(open_call, 30, 5))
    assert figures(store, day, tokens) == [(30, 0), (5, 0)]
    assert store.rebuild(NOW) == []


def test_settling_never_brings_a_lost_counter_back(store: Store) -> None:
    """It would hold one call alone and be taken for the whole (protocol 1)."""
    day = budget(amount=100, since=TODAY)
    charge(store, day, cost=50)
    settled, released, expired = (request(day, cost=10) for _ in range(3))
    for asked in (settled, released, expired):
        reserve(store, asked)
    lose(store, day)
    store.settle(spent(settled, 7))
    store.release(unspent(released))
    let_pass(store, 601)
    store.expire(NOW, charge=True)
    assert counters(store) == {}
    assert figures(store, day) == [(67, 0)]
    assert refused_by(reserve(store, request(day, cost=34))) == [day]
    assert reserve(store, request(day, cost=33)).outcome is Outcome.ADMITTED


def test_c70_a_limit_made_in_mid_window_counts_what_this_window_holds_already(
    store: Store,
) -> None:
    yesterday = NOW - dt.timedelta(days=1)
    charge(store, cost=88, at=yesterday)
    charge(store, cost=12)
    made = budget(amount=50, since=TODAY)
    assert store.usage([made])[0].available == 38
    assert reserve(store, request(made, cost=39)).outcome is Outcome.REFUSED
    lowered = budget(amount=10, since=TODAY)
    room = store.usage([lowered])[0]
    assert (room.used, room.available) == (12, 0)
    refused = request(lowered, cost=1)
    assert refused_by(reserve(store, refused)) == [lowered]
    assert lowered.window.seconds_left(NOW) == 11.5 * 3600


def test_a_limit_counts_the_calls_of_its_own_scope_and_unit(store: Store) -> None:
    for tenant, user, model in (("a", "u", "m"), ("a", "v", "m"), ("b", "u", "n")):
        charge(store, cost=10, tokens=3, tenant=tenant, user=user, model=model)
    made = [
        budget(amount=99, since=TODAY, tenant="a"),
        budget("tokens", 99, since=TODAY, user="u"),
        budget("calls", 99, since=TODAY, tenant="a", user="u"),
        budget(amount=99, since=TODAY, model="n"),
        budget("calls", 99, since=TODAY, window=Window.TOTAL),
    ]
    expected = [(20, 0), (6, 0), (1, 0), (10, 0), (3, 0)]
    assert figures(store, *made) == expected
    assert reserve(store, request(*made, tenant="z", user="z", model="z")).outcome
    assert figures(store, *made) == [(u, r + (b.limit.unit == "calls")) for b, (u, r) in
                                     zip(made, expected, strict=True)]  # fmt: skip


def test_calls_in_flight_when_a_limit_is_made_end_in_its_counter_too(store: Store) -> None:
    settled, released, expired = (request(cost=10, tokens=5) for _ in range(3))
    for asked in (settled, released, expired):
        reserve(store, asked)
    made = budget(amount=100, since=TODAY)
    assert refused_by(reserve(store, request(made, cost=71))) == [made]
    assert figures(store, made) == [(0, 30)]
    store.settle(spent(settled, 25, 5))
    store.release(unspent(released))
    assert figures(store, made) == [(25, 10)]
    let_pass(store, 601)
    store.expire(NOW, charge=False)
    assert figures(store, made) == [(25, 0)]
    store.settle(spent(expired, 8, 5))
    assert figures(store, made) == [(33, 0)]
    assert store.rebuild(NOW) == []


def test_a_call_that_had_expired_before_a_limit_was_made_still_ends_in_its_counter(
    store: Store,
) -> None:
    asked = request(cost=10)
    reserve(store, asked)
    let_pass(store, 601)
    store.expire(NOW, charge=True)
    made = budget(amount=100, since=TODAY)
    reserve(store, request(made, cost=1))
    assert figures(store, made) == [(10, 1)]
    store.settle(spent(asked, 4))
    assert figures(store, made) == [(4, 1)]
    assert store.rebuild(NOW) == []


def test_a_counter_that_did_not_count_for_a_while_is_seeded_again(store: Store) -> None:
    """Limit off at 40, 60 spent, on again (protocol 3)."""
    before = budget(amount=120, since=TODAY)
    charge(store, before, cost=40)
    charge(store, cost=60)
    after = budget(amount=120, since=TODAY + 1)
    assert figures(store, after) == [(100, 0)]
    assert refused_by(reserve(store, request(after, cost=21))) == [after]
    charge(store, after, cost=20)
    assert figures(store, after) == [(120, 0)]


def test_a_limit_whose_amount_changes_goes_on_counting(store: Store) -> None:
    charge(store, budget(amount=100), cost=60)
    assert refused_by(reserve(store, request(budget(amount=90), cost=31)))
    assert reserve(store, request(budget(amount=91), cost=31)).outcome is Outcome.ADMITTED


def test_several_budgets_are_seeded_within_one_reserve(store: Store) -> None:
    charge(store, cost=12, tokens=3, tenant="a", user="u")
    made = [
        budget(amount=20, since=TODAY, tenant="a", user="u"),
        budget("tokens", 20, since=TODAY, tenant="a"),
        budget("calls", 20, since=TODAY),
    ]
    assert reserve(store, request(*made, cost=8, tokens=17)).outcome is Outcome.ADMITTED
    assert figures(store, *made) == [(12, 8), (3, 17), (1, 1)]


def test_rebuilding_corrects_a_counter_and_says_what_was_wrong(store: Store) -> None:
    day, tokens = budget(amount=100), budget("tokens", 100, tenant="acme")
    charge(store, day, tokens, cost=30, tokens=7)
    reserve(store, request(day, tokens, cost=10, tokens=2))
    tamper(store, day.key, used=35, reserved=6)
    assert store.rebuild(NOW) == [Drift(day.key, (35, 30), (6, 10))]
    assert store.rebuild(NOW) == []
    assert figures(store, day, tokens) == [(30, 10), (7, 2)]
