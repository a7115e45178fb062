"""Queues of calls that wait for room: their order, who is kept behind, and what ends them."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.stores import (
    age_tickets,
    budget,
    charge,
    figures,
    refused_by,
    request,
    reserve,
    spent,
    unspent,
)
from token_allowance.limits import Budget, Unit, cap_budget
from token_allowance.stores.base import Decision, Outcome, Request, Store


def ticket(place: int) -> UUID:
    """A ticket whose place in line is known."""
    return UUID(int=(1_780_000_000_000 + place) << 80 | 7 << 76 | 2 << 62)


def wait(store: Store, place: int, *budgets: Budget, cost: int = 10) -> Decision:
    """One try of a call that waits."""
    return reserve(store, replace(request(*budgets, cost=cost), ticket=ticket(place)))


def try_again(store: Store, asked: Request) -> Decision:
    again = request(*asked.budgets, cost=asked.amounts.cost_micros, tokens=asked.amounts.tokens)
    return reserve(store, replace(again, ticket=asked.ticket))


def waiting(store: Store, place: int, *budgets: Budget, cost: int = 10, tokens: int = 0) -> Request:
    """A call that stands in line."""
    asked = replace(request(*budgets, cost=cost, tokens=tokens), ticket=ticket(place))
    assert reserve(store, asked).outcome is Outcome.REFUSED
    return asked


def filled(store: Store, *budgets: Budget, cost: int = 1000) -> Request:
    """A call in flight that holds all of them."""
    asked = request(*budgets, cost=cost)
    assert reserve(store, asked).outcome is Outcome.ADMITTED
    return asked


def test_a_call_that_waits_is_told_how_many_stand_before_it(store: Store) -> None:
    day = budget()
    filled(store, day)
    calls = [waiting(store, place, day) for place in (3, 1, 2)]
    assert [try_again(store, call).rank for call in calls] == [2, 0, 1]
    assert reserve(store, request(day, cost=1)).rank == 3


def test_the_worst_of_its_queues_counts(store: Store) -> None:
    acme, everyone = budget(tenant="acme"), budget()
    filled(store, acme, everyone)
    for place in range(3):
        waiting(store, place, everyone)
    waiting(store, 3, acme)
    assert wait(store, 9, acme, everyone).rank == 3


def test_who_comes_later_does_not_overtake_even_if_there_is_room(store: Store) -> None:
    day = budget(amount=1000)
    first = filled(store, day, cost=600)
    big = waiting(store, 1, day, cost=500)
    for later in (request(day, cost=1), replace(request(day, cost=1), ticket=ticket(2))):
        decision = reserve(store, later)
        assert (refused_by(decision), decision.rank) == ([day], 1)
        assert decision.rooms[0].available == 400
    store.settle(spent(first, 100))
    assert try_again(store, big).outcome is Outcome.ADMITTED
    store.leave(ticket(2))
    assert figures(store, day) == [(100, 500)]


def test_who_came_earlier_is_not_kept_behind_those_who_came_later(store: Store) -> None:
    day = budget(amount=1000)
    filled(store, day, cost=600)
    waiting(store, 5, day, cost=500)
    assert wait(store, 1, day, cost=400).outcome is Outcome.ADMITTED


def test_a_call_that_takes_nothing_from_the_budget_of_a_queue_is_not_kept_behind(
    store: Store,
) -> None:
    day, tokens = budget(), budget("tokens", 100)
    filled(store, day)
    waiting(store, 1, day)
    assert reserve(store, request(day, tokens, cost=0, tokens=5)).outcome is Outcome.ADMITTED


def test_a_soft_limit_has_no_queue(store: Store) -> None:
    day = budget()
    filled(store, day)
    waiting(store, 1, day)
    soft = replace(day, limit=replace(day.limit, observe=True))
    assert wait(store, 2, soft).outcome is Outcome.ADMITTED
    observing = request(day, cost=10, observe=True)
    assert reserve(store, observing).outcome is Outcome.ADMITTED


def test_an_admission_ends_the_wait_in_every_queue(store: Store) -> None:
    acme, everyone = budget(tenant="acme"), budget()
    in_flight = filled(store, acme, everyone)
    call = waiting(store, 1, acme, everyone)
    store.settle(unspent(in_flight))
    assert try_again(store, call).outcome is Outcome.ADMITTED
    for one in (acme, everyone):
        assert reserve(store, request(one, cost=1)).outcome is Outcome.ADMITTED


def test_who_leaves_stands_in_no_queue(store: Store) -> None:
    acme, everyone = budget(tenant="acme"), budget()
    in_flight = filled(store, acme, everyone)
    call = waiting(store, 1, acme, everyone)
    store.settle(unspent(in_flight))
    assert reserve(store, request(everyone, cost=1)).outcome is Outcome.REFUSED
    assert call.ticket is not None
    store.leave(call.ticket)
    store.leave(call.ticket)
    for one in (acme, everyone):
        assert reserve(store, request(one, cost=1)).outcome is Outcome.ADMITTED


def test_a_head_that_was_killed_blocks_for_three_seconds_only(store: Store) -> None:
    day = budget()
    in_flight = filled(store, day)
    waiting(store, 1, day)
    store.settle(unspent(in_flight))
    age_tickets(store, 2.5)
    assert reserve(store, request(day, cost=1)).outcome is Outcome.REFUSED
    age_tickets(store, 0.6)
    assert reserve(store, request(day, cost=1)).outcome is Outcome.ADMITTED


def test_each_try_keeps_the_place_for_another_three_seconds(store: Store) -> None:
    day = budget()
    in_flight = filled(store, day)
    call = waiting(store, 1, day)
    for _ in range(3):
        age_tickets(store, 2)
        assert try_again(store, call).outcome is Outcome.REFUSED
    store.settle(unspent(in_flight))
    age_tickets(store, 2)
    assert refused_by(reserve(store, request(day, cost=1))) == [day]


def test_two_calls_before_two_full_budgets_never_wait_for_each_other(store: Store) -> None:
    """The one that came first is first in both queues, whichever it entered first."""
    acme, everyone = budget(tenant="acme"), budget()
    in_all, in_acme = filled(store, everyone), filled(store, acme)
    second = waiting(store, 2, everyone)
    first = waiting(store, 1, acme)
    both = [
        replace(request(acme, everyone, cost=10), ticket=call.ticket) for call in (second, first)
    ]
    assert [reserve(store, call).rank for call in both] == [1, 0]
    store.settle(unspent(in_acme))
    store.settle(unspent(in_all))
    assert reserve(store, both[0]).outcome is Outcome.REFUSED
    assert reserve(store, both[1]).outcome is Outcome.ADMITTED
    again = replace(request(acme, everyone, cost=10), ticket=second.ticket)
    assert reserve(store, again).outcome is Outcome.ADMITTED


@pytest.mark.parametrize("amount", [1000, 5])
def test_who_can_never_be_admitted_stands_in_no_queue(store: Store, amount: int) -> None:
    """What is used up, and what is too large, does not come free when a call in flight ends."""
    day, spent_up = budget(), budget(amount=amount, tenant="acme")
    in_flight = filled(store, day)
    if amount == 1000:
        charge(store, spent_up, cost=1000)
    wait(store, 1, day, spent_up)
    store.settle(unspent(in_flight))
    assert reserve(store, request(day, cost=1)).outcome is Outcome.ADMITTED


def test_a_full_cap_of_a_job_has_no_queue(store: Store) -> None:
    cap = cap_budget("job/", Unit.COST, 1000, since=0, untouched=True)

    def of_the_job(cost: int, ticket: UUID | None = None) -> Request:
        made = request(cost=cost)
        row = made.row | {"run_path": "job/", "holds": [[cap.key, "cost", cost]]}
        return replace(made, budgets=(cap,), row=row, ticket=ticket)

    in_flight = of_the_job(1000)
    assert reserve(store, in_flight).outcome is Outcome.ADMITTED
    assert reserve(store, of_the_job(10, ticket(1))).outcome is Outcome.REFUSED
    store.settle(unspent(in_flight))
    assert reserve(store, of_the_job(1)).outcome is Outcome.ADMITTED


def test_a_refusal_without_a_ticket_joins_no_queue(store: Store) -> None:
    day = budget()
    in_flight = filled(store, day)
    refused = reserve(store, request(day, cost=10))
    assert (refused.outcome, refused.rank) == (Outcome.REFUSED, 0)
    store.settle(unspent(in_flight))
    assert reserve(store, request(day, cost=10)).outcome is Outcome.ADMITTED


def test_a_rolling_budget_has_a_queue_too(store: Store) -> None:
    rolls = budget(window="rolling", rolling_seconds=3600)
    in_flight = filled(store, rolls)
    call = waiting(store, 1, rolls)
    store.settle(unspent(in_flight))
    assert refused_by(reserve(store, request(rolls, cost=1))) == [rolls]
    assert try_again(store, call).outcome is Outcome.ADMITTED
    assert reserve(store, request(rolls, cost=1)).outcome is Outcome.ADMITTED
