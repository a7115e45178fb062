"""Budgets in one process's memory: the reference implementation, and the store of host tests."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from token_allowance.limits import NOTHING, Amounts, Budget, Unit
from token_allowance.stores import base
from token_allowance.stores.base import Decision, Drift, Outcome, Request, Room, Row, Settlement

FINAL_FIELDS = (
    "state", "cost_micros", "cost_exact", "input_tokens", "output_tokens", "cache_read_tokens",
    "cache_write_tokens", "reasoning_tokens", "usage", "raw_usage", "price", "provider_request_id",
    "settled_at",
)  # fmt: skip


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

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.rows: dict[UUID, Row] = {}
        self.counters: dict[str, Counter] = {}
        self._lock = threading.RLock()

    def reserve(self, request: Request) -> Decision:
        with self._lock:
            if self._known(request.row):
                return Decision(Outcome.REPEAT)
            counters = [self._counter(budget) for budget in request.budgets]
            tight = [
                Room(budget, counter.used, counter.reserved)
                for budget, counter in zip(request.budgets, counters, strict=True)
                if self._exceeds(request, budget, counter)
            ]
            refusing = tuple(room for room in tight if request.hard(room.budget))
            if refusing:
                return Decision(Outcome.REFUSED, refusing)
            for budget, counter in zip(request.budgets, counters, strict=True):
                counter.reserved += request.need(budget)
            flags = [*request.row["flags"], *(["would_refuse"] if tight else [])]
            lease = dt.datetime.fromtimestamp(self.clock() + request.lease_seconds, dt.UTC)
            self.rows[request.id] = {**request.row, "flags": flags, "expires_at": lease}
            return Decision(Outcome.ADMITTED)

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
            elif row["state"] == "expired" and settlement.row["state"] == "settled":
                charged = row["settled_at"] is not None
                self._move(row, settlement.actual, held=False, charged=charged)
                outcome = Outcome.LATE
            else:
                return self._again(row, settlement.row)
            late = ["late"] if outcome is Outcome.LATE else []
            row["flags"] = sorted({*row["flags"], *settlement.row["flags"], *late})
            row.update({name: settlement.row[name] for name in FINAL_FIELDS})
            return outcome

    def extend(self, request: Request, *, deferred_id: str | None = None) -> Decision:
        with self._lock:
            row = self.rows.get(request.id)
            if row is None or row["state"] != "reserved":
                return Decision(Outcome.GONE)
            for budget in request.budgets:
                counter = self._counter(budget)
                if request.hard(budget) and self._exceeds(request, budget, counter):
                    return Decision(
                        Outcome.REFUSED, (Room(budget, counter.used, counter.reserved),)
                    )
            for key, unit, _ in row["holds"]:  # also of limits made since, unknown to the caller
                if found := self.counters.get(key):
                    found.reserved += request.amounts.of(Unit(unit))
            row["holds"] = base.extended(row["holds"], request.amounts)
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
            return [Room(b, *self._figures(b)) for b in budgets]

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
            drifts = []
            for key, counter in self.counters.items():
                used, reserved = self._sums(counter.budget)
                if (used, reserved) != (counter.used, counter.reserved):
                    drifts.append(Drift(key, (counter.used, used), (counter.reserved, reserved)))
                    counter.used, counter.reserved = used, reserved
            return drifts

    def check(self) -> list[str]:
        return ["MemoryStore keeps budgets in one process; use it in tests only."]

    def _known(self, row: Row) -> bool:
        key = (row["tenant"], row["idempotency_key"])
        return UUID(str(row["id"])) in self.rows or (
            bool(key[1])
            and any((r["tenant"], r["idempotency_key"]) == key for r in self.rows.values())
        )

    @staticmethod
    def _exceeds(request: Request, budget: Budget, counter: Counter) -> bool:
        need, cap = request.need(budget), request.cap(budget)
        return need > 0 and cap is not None and counter.used + counter.reserved + need > cap

    @staticmethod
    def _again(row: Row, again: Row) -> Outcome:
        same = ("state", "cost_micros", "input_tokens", "output_tokens")
        if again["state"] == "released" or all(row[name] == again[name] for name in same):
            return Outcome.REPEAT
        row["flags"] = sorted({*row["flags"], "conflict"})
        return Outcome.CONFLICT

    def _move(self, row: Row, actual: Amounts, *, held: bool, charged: bool) -> None:
        for key, unit, amount in row["holds"]:
            if counter := self.counters.get(key):
                counter.used += actual.of(Unit(unit)) - (amount if charged else 0)
                counter.reserved -= amount if held else 0

    def _counter(self, budget: Budget) -> Counter:
        counter = self.counters.get(budget.key)
        if counter is None or counter.since < budget.since:
            counter = self.counters[budget.key] = Counter(budget, *self._seed(budget), budget.since)
        return counter

    def _figures(self, budget: Budget) -> tuple[int, int]:
        counter = self.counters.get(budget.key)
        if counter is None or counter.since < budget.since:
            return self._sums(budget)
        return counter.used, counter.reserved

    def _sums(self, budget: Budget) -> tuple[int, int]:
        rows = [row for row in self.rows.values() if base.in_scope(row, budget)]
        unit = budget.limit.unit
        held = sum(base.held(row, unit) for row in rows if row["state"] == "reserved")
        return sum(base.charged(row, unit) for row in rows), held

    def _seed(self, budget: Budget) -> tuple[int, int]:
        """Count what the ledger already has, and let its open rows settle into the counter too."""
        for row in self.rows.values():
            unheld = all(hold[0] != budget.key for hold in row["holds"])
            if row["state"] in ("reserved", "expired") and unheld and base.in_scope(row, budget):
                unit: Any = budget.limit.unit
                row["holds"] = [*row["holds"], [budget.key, unit.value, base.held(row, unit)]]
        return self._sums(budget)
