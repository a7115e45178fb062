"""Holds that nobody ends: extending a lease, and what happens when it runs out."""

from __future__ import annotations

import datetime as dt

from tests.stores import (
    NOW,
    budget,
    charge,
    figures,
    let_pass,
    refused_by,
    request,
    reserve,
    row,
    spent,
    unspent,
)
from token_allowance.limits import microseconds
from token_allowance.stores.base import Outcome, Request, Store


def left(store: Store, asked: Request) -> float:
    """Seconds until the lease ends."""
    ends: dt.datetime = row(store, asked)["expires_at"]
    return (ends - dt.datetime.now(dt.UTC)).total_seconds()


def test_a_lease_lasts_as_long_as_asked_by_the_stores_clock(store: Store) -> None:
    asked = request(budget(), cost=1, lease=600, at=NOW)  # not by the moment of the request
    reserve(store, asked)
    assert 590 < left(store, asked) <= 600
    assert store.expire(NOW, charge=False) == 0


def test_extending_makes_a_lease_longer_and_never_shorter(store: Store) -> None:
    asked = request(budget(), cost=1, lease=600)
    reserve(store, asked)
    longer = request(*asked.budgets, cost=0, calls=0, id=asked.id, lease=900)
    assert store.extend(longer).outcome is Outcome.EXTENDED
    assert 890 < left(store, asked) <= 900
    shorter = request(*asked.budgets, cost=0, calls=0, id=asked.id, lease=5)
    assert store.extend(shorter).outcome is Outcome.EXTENDED
    assert 890 < left(store, asked) <= 900


def test_extending_may_hold_more_of_each_budget_and_settling_gives_all_of_it_back(
    store: Store,
) -> None:
    budgets = budget(amount=100, tenant="acme"), budget("tokens", 100), budget("calls", 1)
    asked = request(*budgets, cost=40, tokens=10)
    reserve(store, asked)
    more = request(*budgets, cost=50, tokens=20, calls=0, id=asked.id)
    assert store.extend(more).outcome is Outcome.EXTENDED
    assert figures(store, *budgets) == [(0, 90), (0, 30), (0, 1)]
    kept = row(store, asked)
    assert (kept["reserved_micros"], kept["reserved_tokens"]) == (90, 30)
    assert store.rebuild(NOW) == []
    store.settle(spent(asked, 7, 7))
    assert figures(store, *budgets) == [(7, 0), (7, 0), (1, 0)]


def test_extending_beyond_any_budget_is_refused_and_changes_none(store: Store) -> None:
    budgets = budget(amount=1000, tenant="acme"), budget(amount=100)
    asked = request(*budgets, cost=40, lease=600)
    reserve(store, asked)
    more = request(*budgets, cost=61, calls=0, id=asked.id, lease=900)
    assert refused_by(store.extend(more)) == [budgets[1]]
    assert figures(store, *budgets) == [(0, 40), (0, 40)]
    assert row(store, asked)["reserved_micros"] == 40
    assert left(store, asked) <= 600


def test_a_call_without_a_price_can_be_extended_and_stays_without(store: Store) -> None:
    day = budget("tokens", 100)
    asked = request(day, cost=None, tokens=10)
    reserve(store, asked)
    store.extend(request(day, cost=0, tokens=5, calls=0, id=asked.id))
    assert row(store, asked)["reserved_micros"] is None
    assert figures(store, day) == [(0, 15)]


def test_what_is_final_or_unknown_cannot_be_extended(store: Store) -> None:
    day = budget()
    asked = request(day, cost=40)
    assert store.extend(asked).outcome is Outcome.GONE
    reserve(store, asked)
    store.release(unspent(asked))
    assert store.extend(asked).outcome is Outcome.GONE
    assert figures(store, day) == [(0, 0)]


def test_a_deferred_call_is_found_by_its_id(store: Store) -> None:
    asked = request(budget(), cost=40, tokens=3)
    reserve(store, asked)
    store.extend(request(*asked.budgets, calls=0, id=asked.id), deferred_id="batch_1")
    store.extend(request(*asked.budgets, calls=0, id=asked.id))  # keeps it
    found = store.find(deferred_id="batch_1")
    assert found is not None
    assert (str(found["id"]), found["reserved_micros"]) == (str(asked.id), 40)
    assert found["holds"] == [[asked.budgets[0].key, "cost", 40]]
    assert store.find(deferred_id="batch_2") is None


def test_a_lease_that_ran_out_gives_its_hold_back_and_is_listed(store: Store) -> None:
    day = budget(amount=100)
    charge(store, day, cost=28)
    asked = request(day, cost=40, lease=600)
    reserve(store, asked)
    let_pass(store, 599)
    assert store.expire(NOW, charge=False) == 0
    let_pass(store, 2)
    assert store.expire(NOW, charge=False) == 1
    assert store.expire(NOW, charge=False) == 0
    assert figures(store, day) == [(28, 0)]
    kept = row(store, asked)
    assert (kept["state"], kept["cost_micros"], kept["settled_at"]) == ("expired", None, None)
    assert store.rebuild(NOW) == []


def test_a_late_settle_after_release_by_lease_charges_the_truth_once(store: Store) -> None:
    budgets = budget(amount=100, tenant="acme"), budget("tokens", 100), budget("calls", 5)
    asked = request(*budgets, cost=40, tokens=10)
    reserve(store, asked)
    let_pass(store, 601)
    store.expire(NOW, charge=False)
    assert store.settle(spent(asked, 33, 8)) is Outcome.LATE
    assert store.settle(spent(asked, 33, 8)) is Outcome.REPEAT
    assert figures(store, *budgets) == [(33, 0), (8, 0), (1, 0)]
    assert row(store, asked)["flags"] == ["late"]
    assert store.rebuild(NOW) == []


def test_a_lease_that_ran_out_may_be_charged_and_a_late_settle_corrects_it(store: Store) -> None:
    budgets = budget(amount=100, tenant="acme"), budget("tokens", 100), budget("calls", 5)
    asked = request(*budgets, cost=40, tokens=10)
    reserve(store, asked)
    let_pass(store, 601)
    assert store.expire(NOW, charge=True) == 1
    assert figures(store, *budgets) == [(40, 0), (10, 0), (1, 0)]
    kept = row(store, asked)
    assert (kept["state"], kept["cost_micros"], kept["flags"]) == ("expired", 40, ["estimated"])
    assert kept["settled_at"] == NOW
    assert store.rebuild(NOW) == []
    assert store.settle(spent(asked, 33, 8)) is Outcome.LATE
    assert figures(store, *budgets) == [(33, 0), (8, 0), (1, 0)]
    assert store.settle(spent(asked, 34, 8)) is Outcome.CONFLICT
    assert store.rebuild(NOW) == []


def test_an_expired_call_that_is_released_late_stays_expired(store: Store) -> None:
    day = budget(amount=100)
    asked = request(day, cost=40)
    reserve(store, asked)
    let_pass(store, 601)
    store.expire(NOW, charge=False)
    assert store.release(unspent(asked)) is Outcome.REPEAT
    assert row(store, asked)["state"] == "expired"
    assert figures(store, day) == [(0, 0)]


def test_an_expired_call_that_was_charged_is_given_back_by_a_late_release(store: Store) -> None:
    budgets = budget(amount=100, tenant="acme"), budget("tokens", 100), budget("calls", 5)
    asked = request(*budgets, cost=40, tokens=10)
    reserve(store, asked)
    let_pass(store, 601)
    store.expire(NOW, charge=True)
    assert store.release(unspent(asked)) is Outcome.LATE
    assert store.release(unspent(asked)) is Outcome.REPEAT
    assert figures(store, *budgets) == [(0, 0), (0, 0), (0, 0)]
    kept = row(store, asked)
    assert (kept["state"], kept["cost_micros"], kept["input_tokens"]) == ("released", None, 0)
    assert kept["flags"] == ["estimated", "late"]
    assert store.rebuild(NOW) == []


def test_what_was_added_by_extending_expires_with_the_rest(store: Store) -> None:
    day = budget(amount=100)
    asked = request(day, cost=40)
    reserve(store, asked)
    store.extend(request(day, cost=20, calls=0, id=asked.id))
    let_pass(store, 601)
    store.expire(NOW, charge=True)
    assert figures(store, day) == [(60, 0)]
    assert store.rebuild(NOW) == []


def test_no_more_leases_end_at_once_than_asked(store: Store) -> None:
    day = budget("calls", 10)
    for _ in range(5):
        reserve(store, request(day))
    let_pass(store, 601)
    assert [store.expire(NOW, charge=False, most=2) for _ in range(4)] == [2, 2, 1, 0]
    assert figures(store, day) == [(0, 0)]


def test_c46_calls_whose_workers_were_killed_block_until_their_lease_ends(store: Store) -> None:
    day = budget(amount=800)
    charge(store, day, cost=280)
    lost = [request(day, cost=10) for _ in range(52)]
    for asked in lost:
        assert reserve(store, asked).outcome is Outcome.ADMITTED
    assert figures(store, day) == [(280, 520)]
    assert reserve(store, request(day, cost=10)).outcome is Outcome.REFUSED
    let_pass(store, 601)
    assert store.expire(NOW, charge=False) == 52
    assert reserve(store, request(day, cost=10)).outcome is Outcome.ADMITTED
    assert figures(store, day) == [(280, 10)]
    assert store.settle(spent(lost[0], 10)) is Outcome.LATE
    assert figures(store, day) == [(290, 10)]


def test_extending_also_holds_more_of_a_limit_that_was_made_since(store: Store) -> None:
    asked = request(cost=40)
    reserve(store, asked)
    made = budget(amount=100, since=microseconds(NOW))
    reserve(store, request(made, cost=1))
    store.extend(request(cost=20, calls=0, id=asked.id))
    assert figures(store, made) == [(0, 61)]
    assert store.rebuild(NOW) == []
    store.settle(spent(asked, 33))
    assert figures(store, made) == [(33, 1)]
