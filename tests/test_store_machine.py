"""Any order of calls, leases and changed limits: each store agrees with a model that only sums.

The model keeps a list of calls and no counters, so it cannot lose, double or forget anything.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.stores import (
    NOW,
    clear,
    counters,
    figures,
    let_pass,
    lose,
    request,
    reserve,
    rows,
    spent,
    unspent,
)
from token_allowance.limits import EACH, Attribution, Budget, Limit, Unit, apply, microseconds
from token_allowance.stores.base import Outcome, Request, Store, fresh
from token_allowance.windows import Window

RULES = (
    Limit(tenant=EACH, user=EACH),
    Limit(tenant=EACH, unit=Unit.TOKENS),
    Limit(tenant="a", unit=Unit.TOKENS),  # overrides the one above
    Limit(tenant=EACH, window=Window.HOUR, unit=Unit.CALLS),
    Limit(window=Window.TOTAL),
    Limit(tenant=EACH, window=Window.ROLLING, rolling_seconds=2 * 3600),
    Limit(user=EACH, window=Window.ROLLING, rolling_seconds=3600, unit=Unit.TOKENS),
)
PEOPLE = (Attribution("a", "u"), Attribution("a", "v"), Attribution("b", "u"))
places = st.integers(0, len(RULES) - 1)
amounts = st.sampled_from([0, 1, 3, 10, 40, 100, 1000])
needs = st.integers(0, 30)
picks = st.integers(0, 10**6)


@dataclass
class Call:
    """What the model remembers of one call: cost, tokens and calls held or charged."""

    asked: Request
    lease: int
    state: str = "reserved"
    held: tuple[int, int, int] = (0, 0, 1)
    charged: tuple[int, int, int] = (0, 0, 0)


@dataclass
class Model:
    calls: list[Call] = field(default_factory=list)

    def figure(self, budget: Budget) -> tuple[int, int]:
        """(used, reserved) of a budget: the sums over the calls of its scope and window."""
        place = (Unit.COST, Unit.TOKENS, Unit.CALLS).index(budget.limit.unit)
        mine = [
            call
            for call in self.calls
            if budget.window.contains(call.asked.now)
            and all(call.asked.row[name] == value for name, value in budget.values)
        ]
        held = sum(call.held[place] for call in mine if call.state == "reserved")
        return sum(call.charged[place] for call in mine), held

    def full(self, asked: Request, budgets: Iterable[Budget]) -> list[Budget]:
        return [
            b
            for b in budgets
            if b.enforced
            and asked.need(b) > 0
            and sum(self.figure(b)) + asked.need(b) > b.limit.stop_amount
        ]

    def at_their_level(self, asked: Request) -> list[Budget]:
        return [
            b
            for b in asked.budgets
            if asked.hard(b)
            and b.limit.degrade_at is not None
            and self.figure(b)[0] * 100 >= b.limit.degrade_at * b.limit.amount
        ]


class StoreMachine(RuleBasedStateMachine):
    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store, self.model = store, Model()
        self.now, self.seconds, self.ticks = NOW, 0, 0
        self.active: dict[int, Limit] = {}

    def budgets(self, who: Attribution) -> list[Budget]:
        return apply(self.active.values(), who, model="m", plan="", now=self.now)[0]

    def everyones(self) -> dict[str, Budget]:
        return {budget.key: budget for who in PEOPLE for budget in self.budgets(who)}

    def tick(self) -> int:
        self.ticks += 1
        return microseconds(self.now) + self.ticks

    def call(self, pick: int) -> Call:
        return self.model.calls[pick % len(self.model.calls)]

    def ask(self, who: Attribution, cost: int, tokens: int, calls: int = 1) -> Request:
        names: dict[str, Any] = who.as_dict()
        given: dict[str, Any] = {
            "cost": cost,
            "tokens": tokens,
            "calls": calls,
            "at": self.now,
            "lease": 650,
        }
        return request(*self.budgets(who), **given, **names)

    @rule(
        place=places,
        amount=amounts,
        observe=st.booleans(),
        degrade_at=st.sampled_from([None, 1, 50, 90, 110]),
        stop=st.sampled_from([100, 100, 115]),
    )
    def make_or_change_limit(
        self, place: int, amount: int, observe: bool, degrade_at: int | None, stop: int
    ) -> None:
        """As the trigger does it: a new limit counts from now on, a changed amount goes on."""
        known = self.active.get(place)
        since = known.tracked_since if known else self.tick()
        self.active[place] = replace(
            RULES[place],
            amount=amount,
            observe=observe,
            degrade_at=degrade_at,
            hard_stop_percent=stop,
            tracked_since=since,
        )

    @rule(place=places)
    def disable_limit(self, place: int) -> None:
        self.active.pop(place, None)

    @rule(who=st.sampled_from(PEOPLE), cost=needs, tokens=needs, cheaper=st.booleans())
    def reserve(self, who: Attribution, cost: int, tokens: int, cheaper: bool) -> None:
        asked = self.ask(who, cost, tokens)
        full = self.model.full(asked, asked.budgets)
        hard = [b for b in full if asked.hard(b)]
        at = self.model.at_their_level(asked)
        decision = reserve(self.store, replace(asked, may_degrade=cheaper))
        if cheaper and at:
            assert decision.outcome is Outcome.DEGRADE
            reached = {room.budget.key: room.used for room in decision.rooms}
            assert reached == {b.key: self.model.figure(b)[0] for b in at}
            assert asked.id not in rows(self.store)
            return
        if hard:
            assert decision.outcome is Outcome.REFUSED
            refusing = {room.budget.key: (room.used, room.reserved) for room in decision.rooms}
            assert refusing.items() <= {b.key: self.model.figure(b) for b in hard}.items()
            assert refusing
            assert asked.id not in rows(self.store)
        else:
            assert decision.outcome is Outcome.ADMITTED
            flags = rows(self.store)[asked.id]["flags"]
            assert flags == (["would_refuse"] if full else [])
            self.model.calls.append(Call(asked, self.seconds + 650, held=(cost, tokens, 1)))

    @precondition(lambda self: self.model.calls)
    @rule(pick=picks)
    def reserve_again(self, pick: int) -> None:
        assert reserve(self.store, self.call(pick).asked).outcome is Outcome.REPEAT

    @precondition(lambda self: self.model.calls)
    @rule(pick=picks, cost=needs, tokens=needs)
    def settle(self, pick: int, cost: int, tokens: int) -> None:
        call = self.call(pick)
        outcome = self.store.settle(spent(call.asked, cost, tokens))
        if call.state in ("reserved", "expired"):
            assert outcome is (Outcome.SETTLED if call.state == "reserved" else Outcome.LATE)
            call.state, call.charged = "settled", (cost, tokens, 1)
        else:
            same = call.charged == (cost, tokens, 1)
            assert outcome is (Outcome.REPEAT if same else Outcome.CONFLICT)

    @precondition(lambda self: self.model.calls)
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        call = self.call(pick)
        outcome = self.store.release(unspent(call.asked))
        if call.state == "expired" and call.charged != (0, 0, 0):
            assert outcome is Outcome.LATE
            call.state, call.charged = "released", (0, 0, 0)
            return
        assert outcome is (Outcome.RELEASED if call.state == "reserved" else Outcome.REPEAT)
        call.state = "released" if call.state == "reserved" else call.state

    @rule(who=st.sampled_from(PEOPLE), cost=needs, tokens=needs)
    def settle_unknown(self, who: Attribution, cost: int, tokens: int) -> None:
        asked = self.ask(who, cost, tokens)
        opened = counters(self.store)
        if all(b.key in opened or not fresh(b) for b in asked.budgets):
            assert self.store.settle(spent(asked, cost, tokens)) is Outcome.LATE
            call = Call(asked, 0, "settled", charged=(cost, tokens, 1))
            self.model.calls.append(call)

    @precondition(lambda self: self.model.calls)
    @rule(pick=picks, cost=needs, tokens=needs)
    def extend(self, pick: int, cost: int, tokens: int) -> None:
        call = self.call(pick)
        budgets = call.asked.budgets
        now = self.everyones()
        if any(
            b.slice is not None and not b.at(self.now).window.contains(call.asked.now)
            for b in budgets
        ):
            return  # it is behind the tail, where nothing is known for sure any more
        if any(b.key not in now or now[b.key].since != b.since for b in budgets):
            return  # its limits have changed: nobody counts some of them any more
        more = replace(
            request(*budgets, cost=cost, tokens=tokens, calls=0),
            id=call.asked.id,
            lease_seconds=650,
        )
        outcome = self.store.extend(more).outcome
        if call.state != "reserved":
            assert outcome is Outcome.GONE
        elif any(more.hard(b) for b in self.model.full(more, budgets)):
            assert outcome is Outcome.REFUSED
        else:
            assert outcome is Outcome.EXTENDED
            call.held = (call.held[0] + cost, call.held[1] + tokens, 1)
            call.lease = self.seconds + 650

    @rule(seconds=st.sampled_from([100, 400, 700]))
    def let_pass(self, seconds: int) -> None:
        self.seconds += seconds
        let_pass(self.store, seconds)

    @rule(charge=st.booleans())
    def expire(self, charge: bool) -> None:
        due = [c for c in self.model.calls if c.state == "reserved" and c.lease < self.seconds]
        assert self.store.expire(self.now, charge=charge) == len(due)
        for call in due:
            call.state, call.charged = "expired", call.held if charge else (0, 0, 0)

    @rule(minutes=st.sampled_from([1, 25, 60, 24 * 60]))
    def next_window(self, minutes: int) -> None:
        self.now += dt.timedelta(minutes=minutes)

    @rule(pick=picks)
    def lose_a_counter(self, pick: int) -> None:
        """As the trigger does it: all limits count anew."""
        mine = [b for key, b in sorted(self.everyones().items()) if key in counters(self.store)]
        if mine:
            lose(self.store, mine[pick % len(mine)])
            for place, limit in self.active.items():
                self.active[place] = replace(limit, tracked_since=self.tick())

    @invariant()
    def figures_are_the_sums(self) -> None:
        budgets = list(self.everyones().values())
        assert figures(self.store, *budgets) == [self.model.figure(b) for b in budgets]

    def teardown(self) -> None:
        for who in PEOPLE:  # needs nothing, and has counters seeded that are out of date
            nothing = self.ask(who, 0, 0, calls=0)
            assert reserve(self.store, nothing).outcome is Outcome.ADMITTED
            self.store.release(unspent(nothing))
        drifts = {drift.key for drift in self.store.rebuild(self.now)}
        try:
            assert drifts & self.everyones().keys() == set()
        finally:
            clear(self.store)


def test_every_store_agrees_with_sums_over_a_list(store: Store) -> None:
    chosen = settings(
        max_examples=25,
        stateful_step_count=35,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    machine: Any = partial(StoreMachine, store)
    run_state_machine_as_test(machine, settings=chosen)
