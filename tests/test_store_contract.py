"""What every store promises of reserve and settle."""

from __future__ import annotations

import datetime as dt

import pytest

from tests.stores import (
    NOW,
    budget,
    charge,
    counters,
    figures,
    refused_by,
    request,
    reserve,
    row,
    rows,
    spent,
    unspent,
)
from token_allowance.money import MAX_MICROS
from token_allowance.stores.base import Outcome, Room, Store
from token_allowance.windows import Window


def four_budgets(user_amount: int = 1000):
    """A user's dollars, a tenant's tokens, a feature's calls and everybody's dollars."""
    return (
        budget(amount=user_amount, tenant="acme", user="u"),
        budget("tokens", 500, tenant="acme"),
        budget("calls", 3, feature="chat"),
        budget(amount=10_000, window=Window.MONTH),
    )


def test_an_admitted_call_is_held_in_each_budget_in_its_own_unit(store: Store) -> None:
    budgets = four_budgets()
    asked = request(*budgets, cost=80, tokens=200)
    assert reserve(store, asked).outcome is Outcome.ADMITTED
    assert figures(store, *budgets) == [(0, 80), (0, 200), (0, 1), (0, 80)]
    kept = row(store, asked)
    assert (kept["state"], kept["reserved_micros"], kept["reserved_tokens"]) == (
        "reserved",
        80,
        200,
    )
    assert kept["holds"] == [[b.key, b.limit.unit, asked.need(b)] for b in asked.budgets]


def test_settling_replaces_what_was_held_by_what_was_used(store: Store) -> None:
    budgets = four_budgets()
    asked = request(*budgets, cost=80, tokens=200)
    reserve(store, asked)
    assert store.settle(spent(asked, 31, 90)) is Outcome.SETTLED
    assert figures(store, *budgets) == [(31, 0), (90, 0), (1, 0), (31, 0)]
    kept = row(store, asked)
    assert (kept["state"], kept["cost_micros"], kept["input_tokens"]) == ("settled", 31, 90)
    assert store.rebuild(NOW) == []


def test_releasing_gives_everything_back(store: Store) -> None:
    budgets = four_budgets()
    asked = request(*budgets, cost=80, tokens=200)
    reserve(store, asked)
    assert store.release(unspent(asked)) is Outcome.RELEASED
    assert figures(store, *budgets) == [(0, 0)] * 4
    assert (row(store, asked)["state"], row(store, asked)["cost_micros"]) == ("released", None)
    assert store.rebuild(NOW) == []


def test_more_than_was_reserved_is_charged_all_the_same(store: Store) -> None:
    day = budget(amount=100)
    asked = request(day, cost=80)
    reserve(store, asked)
    assert store.settle(spent(asked, 250)) is Outcome.SETTLED
    assert figures(store, day) == [(250, 0)]
    assert store.usage([day])[0].available == 0
    assert refused_by(reserve(store, request(day, cost=1))) == [day]


@pytest.mark.parametrize("full", range(4))
def test_a_refusal_by_any_of_four_budgets_moves_none_and_leaves_no_row(
    store: Store, full: int
) -> None:
    small = [
        budget(amount=79, tenant="acme", user="u"),
        budget("tokens", 199, tenant="acme"),
        budget("calls", 0, feature="chat"),
        budget(amount=79, window=Window.MONTH),
    ]
    budgets = [*four_budgets()]
    budgets[full] = small[full]
    assert refused_by(reserve(store, request(*budgets, cost=80, tokens=200))) == [small[full]]
    assert figures(store, *budgets) == [(0, 0)] * 4
    assert all(figure == (0, 0) for figure in counters(store).values())
    assert rows(store) == {}


def test_a_refusal_names_every_budget_that_is_full_with_its_figures(store: Store) -> None:
    user, _, _, month = budgets = four_budgets(user_amount=100)
    charge(store, *budgets, cost=60, tokens=1)
    reserve(store, request(*budgets, cost=20, tokens=1))
    decision = reserve(store, request(*budgets, cost=30, tokens=1))
    assert decision.rooms == (Room(user, 60, 20),)
    assert decision.rooms[0].available == 20
    assert figures(store, month) == [(60, 20)]


def test_equality_is_admitted_and_one_more_is_not(store: Store) -> None:
    day = budget("tokens", 100)
    assert reserve(store, request(day, tokens=100)).outcome is Outcome.ADMITTED
    assert reserve(store, request(day, tokens=1)).outcome is Outcome.REFUSED


def test_c39_what_is_in_flight_counts(store: Store) -> None:
    day = budget(amount=5_000_000)
    charge(store, day, cost=4_752_720)
    admitted = [reserve(store, request(day, cost=88_400)).outcome for _ in range(4)]
    assert admitted == [Outcome.ADMITTED] * 2 + [Outcome.REFUSED] * 2
    assert figures(store, day) == [(4_752_720, 176_800)]
    assert store.usage([day])[0].available == 70_480


def test_c54_a_call_refused_for_its_tokens_does_not_use_up_a_call(store: Store) -> None:
    calls, tokens = budget("calls", 5), budget("tokens", 100)
    for _ in range(4):
        charge(store, calls, tokens, tokens=20)
    assert refused_by(reserve(store, request(calls, tokens, tokens=21))) == [tokens]
    assert figures(store, calls) == [(4, 0)]
    assert reserve(store, request(calls, tokens, tokens=20)).outcome is Outcome.ADMITTED


def test_c71_a_users_budget_refuses_whatever_room_the_tenant_has(store: Store) -> None:
    user = budget(amount=1_000_000, tenant="acme", user="u")
    tenant, everyone = budget(amount=100_000_000, tenant="acme"), budget(amount=10**9)
    charge(store, user, tenant, everyone, cost=950_000)
    refused = reserve(store, request(user, tenant, everyone, cost=80_000))
    assert refused_by(refused) == [user]
    assert figures(store, tenant, everyone) == [(950_000, 0)] * 2


def test_c72_a_user_seen_for_the_first_time_has_a_budget_of_its_own(store: Store) -> None:
    old, new = budget(amount=500_000, user="old"), budget(amount=500_000, user="new")
    charge(store, old, cost=500_000)
    outcomes = [reserve(store, request(new, cost=200_000)).outcome for _ in range(3)]
    assert outcomes == [Outcome.ADMITTED, Outcome.ADMITTED, Outcome.REFUSED]


def test_c73_an_amount_of_zero_refuses_every_call_that_costs_something(store: Store) -> None:
    nothing = budget(amount=0)
    assert refused_by(reserve(store, request(nothing, cost=1))) == [nothing]
    assert refused_by(reserve(store, request(budget("calls", 0))))


def test_c21_a_call_that_needs_nothing_passes_a_spent_budget(store: Store) -> None:
    dollars, tokens = budget(amount=10), budget("tokens", 100)
    charge(store, dollars, tokens, cost=10, tokens=10)
    free = request(dollars, tokens, cost=0, tokens=90)
    assert reserve(store, free).outcome is Outcome.ADMITTED
    assert figures(store, dollars, tokens) == [(10, 0), (10, 90)]
    assert refused_by(reserve(store, request(dollars, tokens, cost=0, tokens=1))) == [tokens]


def test_c75_a_call_takes_its_tokens_and_nothing_refills_within_the_window(store: Store) -> None:
    hour = budget("tokens", 30, window=Window.HOUR, feature="small")
    assert refused_by(reserve(store, request(hour, tokens=150))) == [hour]
    wide = budget("tokens", 1000, window=Window.HOUR)
    charge(store, wide, tokens=600)
    for minutes in (0, 10, 29):
        at = NOW + dt.timedelta(minutes=minutes)
        assert reserve(store, request(wide, tokens=600, at=at)).outcome is Outcome.REFUSED
    assert store.usage([wide])[0].available == 400


def test_c62_thirty_tokens_an_hour_never_fill_a_day_of_a_thousand(store: Store) -> None:
    start = dt.datetime(2026, 3, 4, tzinfo=dt.UTC)
    for hour in range(48):
        at = start + dt.timedelta(hours=hour)
        charge(store, budget("tokens", 1000, now=at), tokens=30, at=at)
    days = [budget("tokens", 1000, now=start + dt.timedelta(days=day)) for day in range(2)]
    assert figures(store, *days) == [(720, 0), (720, 0)]


def test_c63_a_new_day_begins_at_midnight_in_the_budgets_own_zone(store: Store) -> None:
    def shanghai(text: str):
        return budget(amount=100, now=dt.datetime.fromisoformat(text), time_zone="Asia/Shanghai")

    charge(store, shanghai("2026-08-19T13:30:00Z"), cost=100)
    before, after = shanghai("2026-08-19T15:59:59Z"), shanghai("2026-08-19T16:00:00Z")
    refused = request(before, cost=1, at=dt.datetime(2026, 8, 19, 15, 59, 59, tzinfo=dt.UTC))
    assert refused_by(reserve(store, refused)) == [before]
    assert before.window.seconds_left(refused.now) == 1
    assert figures(store, after) == [(0, 0)]
    assert reserve(store, request(after, cost=100)).outcome is Outcome.ADMITTED


def test_c68_each_new_day_admits_again_though_no_job_has_run(store: Store) -> None:
    for day in range(3):
        at = NOW + dt.timedelta(days=day)
        today = budget(amount=5, now=at)
        charge(store, today, cost=5, at=at)
        assert refused_by(reserve(store, request(today, cost=1, at=at))) == [today]


def test_c81_sums_pass_two_to_the_power_of_thirty_two(store: Store) -> None:
    month = budget("tokens", 10**10, window=Window.MONTH)
    for _ in range(2):
        charge(store, month, tokens=1_500_000_000)
    assert figures(store, month) == [(3_000_000_000, 0)]


def test_amounts_reach_the_largest_integer_that_json_keeps(store: Store) -> None:
    total = budget(amount=MAX_MICROS, window=Window.TOTAL)
    charge(store, total, cost=MAX_MICROS - 1)
    assert refused_by(reserve(store, request(total, cost=2))) == [total]
    charge(store, total, cost=1)
    assert figures(store, total) == [(MAX_MICROS, 0)]
    assert refused_by(reserve(store, request(total, cost=MAX_MICROS))) == [total]
    assert store.rebuild(NOW) == []


def test_a_call_without_a_price_takes_no_dollars_but_its_tokens(store: Store) -> None:
    dollars, tokens = budget(amount=10), budget("tokens", 100)
    asked = request(dollars, tokens, cost=None, tokens=40)
    assert reserve(store, asked).outcome is Outcome.ADMITTED
    assert store.settle(spent(asked, None, 30)) is Outcome.SETTLED
    assert figures(store, dollars, tokens) == [(0, 0), (30, 0)]
    assert row(store, asked)["cost_micros"] is None
    assert store.rebuild(NOW) == []


def test_a_call_that_no_limit_matches_is_written_down_all_the_same(store: Store) -> None:
    asked = request(cost=5, tokens=7, tenant="acme")
    assert reserve(store, asked).outcome is Outcome.ADMITTED
    assert store.settle(spent(asked, 5, 7)) is Outcome.SETTLED
    assert (row(store, asked)["tenant"], row(store, asked)["holds"]) == ("acme", [])
    assert counters(store) == {}


def test_usage_creates_nothing(store: Store) -> None:
    assert figures(store, *four_budgets()) == [(0, 0)] * 4
    assert counters(store) == {}


def test_locks_are_taken_narrow_scopes_first_and_the_hottest_last() -> None:
    asked = request(*four_budgets())
    keys = [b.key for b in asked.budgets]
    assert keys == sorted(keys)
    assert [len(b.values) for b in asked.budgets] == [2, 1, 1, 0]
