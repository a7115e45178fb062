"""Budgets in one process's memory: the reference implementation, and the store of host tests."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from token_allowance import keys, rolling
from token_allowance.limits import NOTHING, Amounts, Budget, Unit
from token_allowance.stores import adjustments, base, charges, tickets
from token_allowance.stores.base import (
    Adjusted,
    Decision,
    Drift,
    Outcome,
    Request,
    Room,
    Row,
    Settlement,
)
from token_allowance.stores.events import FINAL


@dataclass(slots=True)
class Counter:
    budget: Budget
    used: int = 0
    reserved: int = 0
    since: int = 0


class MemoryStore(base.Store):
    """Counters and ledger rows in dictionaries behind one lock. Nothing is shared or kept.

    ``clock`` gives the seconds by which leases end.
    """

    shared = False
    can_wait = True

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.rows: dict[UUID, Row] = {}
        self.counters: dict[str, Counter] = {}
        self.adjustments: list[Row] = []
        self.queues = tickets.Queues()
        self._lock = threading.RLock()

    def reserve(self, request: Request) -> Decision:
        with self._lock:
            if self._known(request.row):
                return Decision(Outcome.REPEAT)
            rooms = [self._open(budget) for budget in request.budgets]
            tight = [room for room in rooms if self._exceeds(request, room)]
            if kept_out := request.degraded(rooms) or self._refused(request, rooms):
                return kept_out
            for budget in request.budgets:
                self._counter(budget).reserved += request.need(budget)
            flags = [*request.row["flags"], *(["would_refuse"] if tight else [])]
            lease = dt.datetime.fromtimestamp(self.clock() + request.lease_seconds, dt.UTC)
            self.rows[request.id] = {**request.row, "flags": flags, "expires_at": lease}
            if request.ticket:
                self.queues.leave(request.ticket)
            return Decision(Outcome.ADMITTED)

    def _refused(self, request: Request, rooms: Sequence[Room]) -> Decision | None:
        now = self.clock()
        ranks = {room.budget.key: self.queues.rank(request, room.budget.key, now) for room in rooms}
        refusing = [r for r in rooms if tickets.keeps_out(request, r, ranks[r.budget.key])]
        if not refusing:
            return None
        keys = [room.budget.key for room in refusing]
        if request.ticket and tickets.may_queue(request, refusing):
            self.queues.join(request.ticket, keys, now)
        return Decision(Outcome.REFUSED, tuple(refusing), rank=max(ranks[key] for key in keys))

    def leave(self, ticket: UUID) -> None:
        with self._lock:
            self.queues.leave(ticket)

    def settle(self, settlement: Settlement) -> Outcome:
        with self._lock:
            row = self.rows.get(settlement.id)
            if row is None:
                row = self.rows[settlement.id] = dict(settlement.row)
                self._move(row, settlement.actual, held=False, charged=False)
                outcome = Outcome.LATE
            elif row["state"] == "reserved":
                self._move(row, settlement.actual, held=True, charged=False)
                outcome = Outcome(settlement.row["state"])
            elif charges.corrects(row, settlement.row):
                charged = row["settled_at"] is not None
                self._move(row, settlement.actual, held=False, charged=charged)
                outcome = Outcome.LATE
            else:
                return self._again(row, settlement.row)
            late = ["late"] if outcome is Outcome.LATE else []
            row["flags"] = sorted({*row["flags"], *settlement.row["flags"], *late})
            row.update({name: settlement.row[name] for name in ("state", *FINAL)})
            if row["state"] == "released":
                row["idempotency_key"] = ""
            return outcome

    def extend(self, request: Request, *, deferred_id: str | None = None) -> Decision:
        with self._lock:
            row = self.rows.get(request.id)
            if row is None or row["state"] != "reserved":
                return Decision(Outcome.GONE)
            for budget in request.budgets:
                room = self._open(budget)
                if request.hard(budget) and self._exceeds(request, room):
                    return Decision(Outcome.REFUSED, (room,))
            for key, unit, _ in row["holds"]:  # also of limits made since, unknown to the caller
                if found := self.counters.get(key):
                    found.reserved += request.amounts.of(Unit(unit))
            row["holds"] = charges.extended(row["holds"], request.amounts)
            if row["reserved_micros"] is not None:
                row["reserved_micros"] += request.amounts.of(Unit.COST)
            row["reserved_tokens"] += request.amounts.tokens
            lease = dt.datetime.fromtimestamp(self.clock() + request.lease_seconds, dt.UTC)
            row["expires_at"] = max(row["expires_at"], lease)
            row["deferred_id"] = deferred_id or row["deferred_id"]
            return Decision(Outcome.EXTENDED)

    def expire(self, now: dt.datetime, *, charge: bool, most: int = 500) -> int:
        with self._lock:
            moment = dt.datetime.fromtimestamp(self.clock(), dt.UTC)
            due = [
                row
                for row in self.rows.values()
                if row["state"] == "reserved" and row["expires_at"] < moment
            ][:most]
            for row in due:
                kept = Amounts(row["reserved_micros"], row["reserved_tokens"])
                self._move(row, kept if charge else NOTHING, held=True, charged=False)
                row["state"] = "expired"
                if charge:
                    row["flags"] = sorted({*row["flags"], "estimated"})
                    row["cost_micros"] = row["cost_exact"] = row["reserved_micros"]
                    row["input_tokens"] = row["reserved_tokens"]
                    row["settled_at"] = now
            return len(due)

    def usage(self, budgets: Sequence[Budget]) -> list[Room]:
        with self._lock:
            return [self._room(budget) for budget in budgets]

    def find(
        self, *, deferred_id: str = "", tenant: str = "", idempotency_key: str = ""
    ) -> Row | None:
        wanted = {"deferred_id": deferred_id} if deferred_id else {
            "tenant": tenant, "idempotency_key": idempotency_key
        }  # fmt: skip
        with self._lock:
            for row in self.rows.values():
                if all(row[name] == value for name, value in wanted.items()):
                    return dict(row)
            return None

    def rebuild(self, now: dt.datetime) -> list[Drift]:
        with self._lock:
            whole = [c for key, c in self.counters.items() if keys.whole(key) is None]
            return [drift for counter in whole if (drift := self._rebuilt(counter, now))]

    def _rebuilt(self, counter: Counter, now: dt.datetime) -> Drift | None:
        budget = counter.budget if counter.budget.slice is None else counter.budget.at(now)
        budget = replace(budget, since=counter.since)
        before, counts = self._room(budget), self._counts(budget)
        self._seed(budget)
        if counts == self._counts(budget):
            return None
        after = self._room(budget)
        return Drift(budget.key, (before.used, after.used), (before.reserved, after.reserved))

    def adjust(self, budget: Budget, amount: int | None, row: Row) -> Adjusted:
        with self._lock:
            self._open(budget)
            first, last = adjustments.ids(row)
            if done := [a["amount"] for a in self.adjustments if first <= a["id"] <= last]:
                return Adjusted(sum(done), self._room(budget))
            counts, named = self._counts(budget), adjustments.names(budget)
            counted = rolling.numbers(budget.slice) if budget.slice is not None else (0,)
            used = {n: counts[named[n]][0] for n in counted if named[n] in counts}
            changes = adjustments.parts(budget, used, amount)
            for number, change in changes.items():
                self.counters.setdefault(named[number], Counter(budget)).used += change
            self.adjustments += adjustments.rows(budget, changes, row)
            return Adjusted(sum(changes.values()), self._room(budget))

    def check(self) -> list[str]:
        return ["MemoryStore keeps budgets in one process; use it in tests only."]

    def _known(self, row: Row) -> bool:
        key = (row["tenant"], row["idempotency_key"])
        return UUID(str(row["id"])) in self.rows or (
            bool(key[1])
            and any((r["tenant"], r["idempotency_key"]) == key for r in self.rows.values())
        )

    @staticmethod
    def _exceeds(request: Request, room: Room) -> bool:
        need, cap = request.need(room.budget), request.cap(room.budget)
        return need > 0 and cap is not None and room.used + room.reserved + need > cap

    @staticmethod
    def _again(row: Row, again: Row) -> Outcome:
        same = ("state", "cost_micros", "input_tokens", "output_tokens")
        if again["state"] == "released" or all(row[name] == again[name] for name in same):
            return Outcome.REPEAT
        row["flags"] = sorted({*row["flags"], "conflict"})
        return Outcome.CONFLICT

    def _move(self, row: Row, actual: Amounts, *, held: bool, charged: bool) -> None:
        for key, unit, amount in row["holds"]:
            counter, whole = self.counters.get(key), keys.whole(key)
            if counter is None and whole in self.counters and not held and not charged:
                counter = self.counters[key] = Counter(self.counters[whole].budget)
            if counter:
                counter.used += actual.of(Unit(unit)) - (amount if charged else 0)
                counter.reserved -= amount if held else 0

    def _open(self, budget: Budget) -> Room:
        """The budget's figures, its counter seeded first if it is missing or out of date."""
        if self._is_stale(budget):
            self._seed(budget)
        return self._room(budget)

    def _is_stale(self, budget: Budget) -> bool:
        counter = self.counters.get(budget.key)
        return counter is None or counter.since < budget.since

    def _counter(self, budget: Budget) -> Counter:
        """The counter that a call of now is held in."""
        return self.counters.setdefault(budget.held_in, Counter(budget))

    def _room(self, budget: Budget) -> Room:
        found = self._sums(budget) if self._is_stale(budget) else self._counts(budget)
        if budget.slice is None:
            return Room(budget, *found.get(budget.key, (0, 0)))
        names = {n: keys.of_slice(budget.key, n) for n in rolling.numbers(budget.slice)}
        return base.rolled(budget, {n: found[name] for n, name in names.items() if name in found})

    def _counts(self, budget: Budget) -> dict[str, tuple[int, int]]:
        """(used, reserved) by counter, as they are; without those that are zero."""
        names = [budget.key]
        if budget.slice is not None:
            names = [keys.of_slice(budget.key, n) for n in rolling.numbers_kept(budget.slice)]
        found = ((name, self.counters.get(name)) for name in names)
        return {name: (c.used, c.reserved) for name, c in found if c and (c.used or c.reserved)}

    def _sums(self, budget: Budget) -> dict[str, tuple[int, int]]:
        """(used, reserved) by counter, as the ledger has them; without those that are zero."""
        unit, sums = budget.limit.unit, defaultdict[str, list[int]](lambda: [0, 0])
        for row in self._rows(budget):
            figures = sums[charges.held_in(row, budget)]
            figures[0] += charges.charged(row, unit)
            figures[1] += charges.held(row, unit) if row["state"] == "reserved" else 0
        names = set(adjustments.names(budget).values()) if self.adjustments else ()
        for row in self.adjustments:
            if row["key"] in names:
                sums[row["key"]][0] += row["amount"]
        return {name: (used, held) for name, (used, held) in sums.items() if used or held}

    def _rows(self, budget: Budget) -> list[Row]:
        wide = base.kept(budget)
        return [row for row in self.rows.values() if charges.in_scope(row, wide)]

    def _seed(self, budget: Budget) -> None:
        """Count what the ledger already has, and let its open rows settle into the counter too."""
        unit: Any = budget.limit.unit
        for row in self._rows(budget):
            name = charges.held_in(row, budget)
            if row["state"] in ("reserved", "expired") and all(h[0] != name for h in row["holds"]):
                row["holds"] = [*row["holds"], [name, unit.value, charges.held(row, unit)]]
        if budget.slice is not None:
            for key in [key for key in self.counters if keys.whole(key) == budget.key]:
                del self.counters[key]
        self.counters[budget.key] = Counter(budget, since=budget.since)
        for key, (used, reserved) in self._sums(budget).items():
            self.counters[key] = Counter(budget, used, reserved, budget.since)
