"""Budgets as rows in the host's own database: PostgreSQL or SQLite. The default store."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar, cast
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS
from django.db.backends.base.base import BaseDatabaseWrapper

from token_allowance.exceptions import StoreUnavailable
from token_allowance.limits import Budget
from token_allowance.stores import base, ledger, postgresql, slices, sqlite, tickets
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
from token_allowance.stores.connections import open_transaction, run, vendor_of

T = TypeVar("T")
SEED_TRIES = 5


class Dialect(Protocol):
    """The atomic steps in one database's own language."""

    def reserve(self, connection: BaseDatabaseWrapper, request: Request) -> Decision | list[Budget]:
        """The decision, or the budgets to seed from the ledger before asking again."""

    def settle(self, connection: BaseDatabaseWrapper, settlement: Settlement) -> Outcome: ...

    def extend(
        self, connection: BaseDatabaseWrapper, request: Request, deferred_id: str | None
    ) -> Decision: ...

    def expire(
        self, connection: BaseDatabaseWrapper, now: dt.datetime, charge: bool, most: int
    ) -> int: ...

    def seed(self, connection: BaseDatabaseWrapper, budget: Budget, again: bool) -> Drift: ...

    def adjust(
        self, connection: BaseDatabaseWrapper, budget: Budget, amount: int | None, row: Row
    ) -> Adjusted: ...


DIALECTS = {"postgresql": cast(Dialect, postgresql), "sqlite": cast(Dialect, sqlite)}


class DatabaseStore(base.Store):
    """Counters are rows, locked in one fixed order and the hottest last."""

    checks_version = True
    can_wait = True

    def __init__(self, alias: str = DEFAULT_DB_ALIAS) -> None:
        self.alias = alias

    @property
    def dialect(self) -> Dialect:
        vendor = vendor_of(self.alias)
        if vendor not in DIALECTS:
            raise StoreUnavailable(f"DatabaseStore needs PostgreSQL or SQLite, not {vendor}.")
        return DIALECTS[vendor]

    def run(self, operation: Callable[[BaseDatabaseWrapper], T]) -> T:
        return run(self.alias, operation)

    def reserve(self, request: Request) -> Decision:
        for _ in range(SEED_TRIES):
            answer = self.run(lambda connection: self.dialect.reserve(connection, request))
            if isinstance(answer, Decision):
                return self._dated(answer)
            for budget in answer:
                self._seed(budget, again=False)
        raise StoreUnavailable("The counters of this call could not be seeded from the ledger.")

    def may_wait(self) -> bool:
        """Not inside an open transaction on SQLite: while it lasts, nobody else can settle."""
        connection = open_transaction(self.alias)
        return connection is None or not connection.in_atomic_block

    def leave(self, ticket: UUID) -> None:
        self.run(lambda connection: tickets.leave(connection, ticket))

    def settle(self, settlement: Settlement) -> Outcome:
        return self.run(lambda connection: self.dialect.settle(connection, settlement))

    def extend(self, request: Request, *, deferred_id: str | None = None) -> Decision:
        return self._dated(self.run(lambda c: self.dialect.extend(c, request, deferred_id)))

    def expire(self, now: dt.datetime, *, charge: bool, most: int = 500) -> int:
        return self.run(lambda connection: self.dialect.expire(connection, now, charge, most))

    def usage(self, budgets: Sequence[Budget]) -> list[Room]:
        return self.run(lambda connection: ledger.figures(connection, budgets))

    def find(
        self, *, deferred_id: str = "", tenant: str = "", idempotency_key: str = ""
    ) -> Row | None:
        wanted = {"deferred_id": deferred_id}
        if not deferred_id:
            wanted = {"tenant": tenant, "idempotency_key": idempotency_key}
        return self.run(lambda connection: ledger.find(connection, wanted))

    def rebuild(self, now: dt.datetime) -> list[Drift]:
        budgets = self.run(lambda connection: ledger.open_budgets(connection, now))
        drifts = [self._seed(budget, again=True) for budget in budgets]
        return [d for d in drifts if d.used[0] != d.used[1] or d.reserved[0] != d.reserved[1]]

    def adjust(self, budget: Budget, amount: int | None, row: Row) -> Adjusted:
        return self.run(lambda connection: self.dialect.adjust(connection, budget, amount, row))

    def _dated(self, decision: Decision) -> Decision:
        """A refusal by a rolling window costs one query more: it says when there is room again."""
        rooms = decision.rooms
        if decision.outcome is Outcome.DEGRADE or all(r.budget.slice is None for r in rooms):
            return decision
        return replace(decision, rooms=self.run(lambda c: slices.dated(c, rooms)))

    def _seed(self, budget: Budget, *, again: bool) -> Drift:
        """Count the budget from the ledger; not ``again`` if another caller just has."""
        return self.run(lambda connection: self.dialect.seed(connection, budget, again))
