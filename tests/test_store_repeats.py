"""The same thing said twice, in the wrong order, or about something unknown."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.stores import (
    NOW,
    budget,
    charge,
    counters,
    figures,
    request,
    reserve,
    row,
    rows,
    spent,
    unspent,
    version,
)
from token_allowance.stores.base import Outcome, Store
from token_allowance.stores.database import DatabaseStore


def test_c49_settling_three_times_charges_once_and_another_figure_is_a_conflict(
    store: Store,
) -> None:
    day = budget(amount=10**6)
    asked = request(day, cost=20_000)
    reserve(store, asked)
    with ThreadPoolExecutor(3) as workers:
        outcomes = list(workers.map(store.settle, [spent(asked, 9000, 5)] * 3))
    assert sorted(outcomes) == [Outcome.REPEAT, Outcome.REPEAT, Outcome.SETTLED]
    assert row(store, asked)["flags"] == []
    for _ in range(2):
        assert store.settle(spent(asked, 9500, 5)) is Outcome.CONFLICT
    assert figures(store, day) == [(9000, 0)]
    kept = row(store, asked)
    assert (kept["cost_micros"], kept["flags"]) == (9000, ["conflict"])
    assert store.rebuild(NOW) == []


def test_c50_a_providers_id_that_is_empty_or_repeated_hides_no_row(store: Store) -> None:
    day = budget(amount=1000)
    for provider_id in ("", "", "x", "x"):
        asked = request(day, cost=100)
        reserve(store, asked)
        settlement = spent(asked, 100)
        settlement.row["provider_request_id"] = provider_id
        store.settle(settlement)
    assert len(rows(store)) == 4
    assert figures(store, day) == [(400, 0)]


def test_the_same_id_is_held_once(store: Store) -> None:
    day = budget(amount=100)
    asked = request(day, cost=60)
    assert reserve(store, asked).outcome is Outcome.ADMITTED
    for _ in range(2):
        assert reserve(store, asked).outcome is Outcome.REPEAT
    assert figures(store, day) == [(0, 60)]


@pytest.mark.parametrize("settled", [False, True])
def test_the_same_idempotency_key_is_held_once_also_when_the_budget_is_spent(
    store: Store, settled: bool
) -> None:
    day = budget(amount=60, tenant="acme")
    first = request(day, cost=60, key="k")
    reserve(store, first)
    if settled:
        store.settle(spent(first, 60))
    assert reserve(store, request(day, cost=60, key="k")).outcome is Outcome.REPEAT
    assert len(rows(store)) == 1


@pytest.mark.parametrize("seen", [True, False], ids=["reserved", "unknown"])
def test_an_idempotency_key_that_was_released_may_be_used_again(store: Store, seen: bool) -> None:
    day = budget(amount=60, tenant="acme")
    first = request(day, cost=60, key="k")
    if seen:
        reserve(store, first)
    store.release(unspent(first))
    assert (row(store, first)["state"], row(store, first)["idempotency_key"]) == ("released", "")
    assert store.find(tenant="acme", idempotency_key="k") is None
    assert reserve(store, first).outcome is Outcome.REPEAT
    assert reserve(store, request(day, cost=60, key="k")).outcome is Outcome.ADMITTED
    assert reserve(store, request(day, cost=60, key="k")).outcome is Outcome.REPEAT
    assert figures(store, day) == [(0, 60)]
    assert store.rebuild(NOW) == []


def test_of_callers_with_one_idempotency_key_at_once_one_is_admitted(store: Store) -> None:
    day = budget(amount=60, tenant="acme")
    asked = [request(day, cost=60, key="k") for _ in range(8)]
    with ThreadPoolExecutor(8) as workers:
        outcomes = [decision.outcome for decision in workers.map(partial(reserve, store), asked)]
    assert sorted(outcomes) == [Outcome.ADMITTED] + [Outcome.REPEAT] * 7
    assert figures(store, day) == [(0, 60)]


def test_an_idempotency_key_belongs_to_its_tenant(store: Store) -> None:
    for tenant in ("acme", "globex"):
        asked = request(budget(amount=60, tenant=tenant), cost=60, key="k")
        assert reserve(store, asked).outcome is Outcome.ADMITTED
    found = store.find(tenant="globex", idempotency_key="k")
    assert found is not None
    assert (found["tenant"], found["state"]) == ("globex", "reserved")
    assert store.find(tenant="initech", idempotency_key="k") is None


def test_calls_without_an_idempotency_key_never_repeat_each_other(store: Store) -> None:
    day = budget(amount=60)
    assert [reserve(store, request(day, cost=30)).outcome for _ in range(3)] == [
        Outcome.ADMITTED, Outcome.ADMITTED, Outcome.REFUSED,
    ]  # fmt: skip


def test_settling_an_unknown_call_charges_it_once(store: Store) -> None:
    day = budget(amount=100)
    charge(store, day, cost=10)
    unseen = request(day, cost=40)
    assert store.settle(spent(unseen, 30)) is Outcome.LATE
    assert store.settle(spent(unseen, 30)) is Outcome.REPEAT
    assert store.settle(spent(unseen, 31)) is Outcome.CONFLICT
    assert figures(store, day) == [(40, 0)]
    assert sorted(row(store, unseen)["flags"]) == ["conflict", "late"]
    assert store.rebuild(NOW) == []


@pytest.mark.parametrize("age_seconds", [0, 10**6], ids=["young", "counted since before"])
def test_settling_an_unknown_call_leaves_no_counter_that_would_look_empty(
    store: Store, age_seconds: int
) -> None:
    """Else the next reserve would believe a counter that lacks what is in the ledger already."""
    day = budget(amount=100, since=(int(NOW.timestamp()) - age_seconds) * 1_000_000)
    assert store.settle(spent(request(day, cost=40), 70)) is Outcome.LATE
    assert reserve(store, request(day, cost=31)).outcome is Outcome.REFUSED
    assert reserve(store, request(day, cost=30)).outcome is Outcome.ADMITTED
    assert figures(store, day) == [(70, 30)]


def test_releasing_an_unknown_call_leaves_a_stone_that_a_late_reserve_meets(store: Store) -> None:
    """A reserve that times out may still run after its release (protocol 9)."""
    day = budget(amount=100)
    charge(store, day, cost=10)
    asked = request(day, cost=40)
    assert store.release(unspent(asked)) is Outcome.LATE
    assert reserve(store, asked).outcome is Outcome.REPEAT
    assert figures(store, day) == [(10, 0)]
    assert row(store, asked)["state"] == "released"
    assert store.rebuild(NOW) == []


def test_a_final_call_stays_what_it_is(store: Store) -> None:
    day = budget(amount=100)
    settled, released = request(day, cost=40), request(day, cost=40)
    reserve(store, settled)
    reserve(store, released)
    store.settle(spent(settled, 25))
    store.release(unspent(released))
    assert store.release(unspent(settled)) is Outcome.REPEAT
    assert store.release(unspent(released)) is Outcome.REPEAT
    assert store.settle(spent(released, 25)) is Outcome.CONFLICT
    assert figures(store, day) == [(25, 0)]
    assert [row(store, asked)["state"] for asked in (settled, released)] == ["settled", "released"]


def test_flags_of_both_ends_are_kept(store: Store) -> None:
    day = budget(amount=10)
    asked = request(day, cost=40, observe=True)
    reserve(store, asked)
    store.settle(spent(asked, 25, 0, "interrupted"))
    assert sorted(row(store, asked)["flags"]) == ["interrupted", "would_refuse"]


def test_a_reserve_under_an_old_policy_is_stale_and_changes_nothing(store: Store) -> None:
    day = budget(amount=100)
    asked = request(day, cost=40, version=version(store) - 1)
    if not store.checks_version:
        assert store.reserve(asked).outcome is Outcome.ADMITTED
        return
    assert store.reserve(asked).outcome is Outcome.STALE
    assert rows(store) == {}
    assert figures(store, day) == [(0, 0)]


def test_a_refused_or_stale_reserve_opens_no_counter(store: Store) -> None:
    day = budget(amount=10, tenant="acme")
    if store.checks_version:
        asked = request(day, cost=4, version=version(store) - 1)
        assert store.reserve(asked).outcome is Outcome.STALE
        assert counters(store) == {}
    assert reserve(store, request(day, cost=11)).outcome is Outcome.REFUSED
    if isinstance(store, DatabaseStore):
        assert counters(store) == {}
    assert all(figure == (0, 0) for figure in counters(store).values())  # or seeded
