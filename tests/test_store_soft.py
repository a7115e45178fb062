"""Budgets that only note what they would have refused."""

from __future__ import annotations

from tests.stores import NOW, budget, charge, figures, refused_by, request, reserve, row
from token_allowance.stores.base import Outcome, Store


def test_a_call_that_only_observes_is_flagged_where_it_would_have_been_refused(
    store: Store,
) -> None:
    day = budget(amount=100)
    fits = request(day, cost=100, observe=True)
    over = request(day, cost=1, observe=True)
    assert reserve(store, fits).outcome is Outcome.ADMITTED
    assert reserve(store, over).outcome is Outcome.ADMITTED
    assert row(store, fits)["flags"] == []
    assert row(store, over)["flags"] == ["would_refuse"]
    assert figures(store, day) == [(0, 101)]


def test_a_soft_limit_notes_and_a_hard_one_beside_it_refuses(store: Store) -> None:
    soft = budget(amount=10, observe=True, tenant="acme")
    hard = budget(amount=100)
    noted = request(soft, hard, cost=60)
    assert reserve(store, noted).outcome is Outcome.ADMITTED
    assert row(store, noted)["flags"] == ["would_refuse"]
    assert refused_by(reserve(store, request(soft, hard, cost=60))) == [hard]
    assert figures(store, soft, hard) == [(0, 60), (0, 60)]


def test_a_soft_limit_with_room_notes_nothing(store: Store) -> None:
    asked = request(budget(amount=10, observe=True), cost=10)
    reserve(store, asked)
    assert row(store, asked)["flags"] == []


def test_a_limit_that_a_narrower_one_overrides_is_counted_and_says_nothing(store: Store) -> None:
    shadowed = budget(amount=10, enforced=False)
    asked = request(shadowed, cost=60)
    assert reserve(store, asked).outcome is Outcome.ADMITTED
    assert row(store, asked)["flags"] == []
    assert figures(store, shadowed) == [(0, 60)]


def test_a_soft_amount_of_zero_notes_every_call_that_costs_something(store: Store) -> None:
    nothing = budget(amount=0, observe=True)
    free, dear = request(nothing, cost=0), request(nothing, cost=1)
    reserve(store, free)
    reserve(store, dear)
    assert [row(store, asked)["flags"] for asked in (free, dear)] == [[], ["would_refuse"]]


def test_an_observed_call_may_hold_more_though_there_is_no_room(store: Store) -> None:
    day = budget(amount=100)
    charge(store, day, cost=100)
    asked = request(day, cost=0, observe=True)
    reserve(store, asked)
    more = request(day, cost=5, calls=0, id=asked.id, observe=True)
    assert store.extend(more).outcome is Outcome.EXTENDED
    assert figures(store, day) == [(100, 5)]
    assert store.rebuild(NOW) == []
