"""One call's hold on its budgets: what it asks of the store, and how it ends."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable, Iterable
from uuid import UUID

from django.utils import timezone

from token_allowance import blocking, conf, entries, policy, runs, settlements
from token_allowance.attribution import Charge
from token_allowance.bills import Account, settled
from token_allowance.exceptions import (
    AllowanceError,
    CapExceeded,
    ReservationError,
)
from token_allowance.limits import NOTHING, Amounts
from token_allowance.money import MAX_MICROS
from token_allowance.plans import UNKNOWN_VERSION, Plan, plan
from token_allowance.pricing import cost
from token_allowance.refusals import refused
from token_allowance.stores.base import Outcome, Request, Row, Settlement, Store, holds
from token_allowance.usage import Usage

logger = logging.getLogger("token_allowance")
NO_USAGE = Usage()


class Reservation:
    """One call's hold on its budgets, from dispatch to its end. Finishing it twice does nothing.

    No finishing method raises for a store that is down: the answer is already there, so the
    settlement is kept and applied with a later call (case C48).
    """

    def __init__(self, plan: Plan, charge: Charge, now: dt.datetime) -> None:
        self.id = entries.new_id()
        self.plan = plan
        self.charge = charge
        self.created_at = now
        self.amounts = plan.amounts
        self.budgets = plan.budgets
        self.deferred = False
        self.repeated = False
        self._taken_micros = 0  # counted in the caps of the request or job
        self._finished = False
        self._lock = threading.Lock()
        self.row: Row = self._begun()

    @property
    def finished(self) -> bool:
        return self._finished

    def _begun(self) -> Row:
        path = runs.path(self.charge.runs)
        return entries.begun(self.id, self.plan, self.charge.trace_id, self.created_at, path)

    def adopt(self, store: Store) -> bool:
        """Take the place of the call that used the same idempotency key before: settle that one.

        False if there is none any more: it was released, which frees its key.
        """
        key = self.plan.attempt.idempotency_key
        if not key:
            return True
        row = store.find(tenant=self.plan.attribution.tenant, idempotency_key=key)
        if row is None:
            return False
        self.repeated = row["id"] != str(self.id)
        self.id, self.row = UUID(row["id"]), row
        return True

    def holds(self, key: str) -> int:
        """What it still holds in the budget with this key, in its unit."""
        if self._finished or self.repeated:
            return 0
        return sum(self.amounts.of(b.limit.unit) for b in self.budgets if b.key == key)

    def request(self, amounts: Amounts, lease_seconds: float, now: dt.datetime) -> Request:
        return Request(
            id=self.id,
            version=self.plan.version,
            budgets=self.budgets,
            amounts=amounts,
            lease_seconds=lease_seconds,
            row=self.row,
            now=now,
            observe=self.plan.observe,
        )

    def settle(self, usage: Usage, *, request_id: str = "") -> None:
        """Charge what was used, all of it, even above the reservation."""
        self.settle_account(Account(usage=usage), request_id=request_id)

    def settle_account(self, account: Account, *, request_id: str = "") -> None:
        """The same with all that the answer said of itself."""
        self._finish(
            lambda: settled(account, self.plan.attempt, self.plan.prices, self.created_at),
            request_id,
        )

    def settle_estimate(self, *flags: str, request_id: str = "") -> None:
        """Charge what was reserved: nothing better is known."""
        self._finish(lambda: self._estimated(flags), request_id)

    def release(self, *flags: str) -> None:
        """Give everything back: nothing was used."""
        final = entries.ended("released", flags, Usage(), None, NOTHING, None)
        self._finish(lambda: (NOTHING, final))

    def defer(self, deferred_id: str, *, seconds: float) -> None:
        """Keep the hold for an answer that comes later. Charged at once if it cannot be kept."""
        try:
            self.extend(seconds=seconds, deferred_id=deferred_id)
        except AllowanceError:
            logger.exception("token_allowance: %s cannot wait for its answer", self.id)
            self.settle_estimate("uncertain")

    def abandon(self) -> None:
        """End a call whose caller has gone before it was dispatched."""
        (self.leave if self.repeated else self.release)()

    def leave(self) -> None:
        """End a repeated call and let the first one be: nothing is charged again."""
        if self._ends_now():
            self._return_to_runs(NOTHING)

    def _estimated(self, flags: Iterable[str]) -> tuple[Amounts, Row]:
        plan = self.plan
        final = entries.ended("settled", flags, plan.estimate, plan.price, self.amounts, None)
        extra = self.row["reserved_tokens"] - plan.estimate.total_tokens
        final["output_tokens"] += max(0, extra)
        return self.amounts, final

    def extend(
        self,
        usage: Usage = NO_USAGE,
        *,
        seconds: float | None = None,
        deferred_id: str | None = None,
    ) -> None:
        """Hold more, or for longer. Raises AllowanceExceeded if a budget has no room for it."""
        blocking.check()
        price = self.plan.price
        priced = cost(usage, price) if price and usage else None
        tokens = min(MAX_MICROS, usage.total_tokens)
        more = Amounts(min(MAX_MICROS, priced.micros) if priced else 0, tokens, calls=0)
        lease = conf.current().RESERVATION_SECONDS if seconds is None else seconds
        now = timezone.now()
        request = self.request(more, lease, now)
        self.take_from_runs(more)
        try:
            decision = conf.store().extend(request, deferred_id=deferred_id)
            if decision.outcome is Outcome.REFUSED:
                raise refused(request, decision, self.plan.attribution, self.charge)
            if decision.outcome is Outcome.GONE:
                raise ReservationError("The reservation is final; it cannot be extended.")
        except BaseException:
            self.give_back_to_runs(more)
            raise
        held = self.amounts
        micros = None if held.cost_micros is None else held.cost_micros + (more.cost_micros or 0)
        self.amounts = Amounts(micros, held.tokens + more.tokens)
        self.row["reserved_micros"], self.row["reserved_tokens"] = micros, self.amounts.tokens
        self.row["holds"] = holds(self.request(self.amounts, lease, now))
        self.deferred = self.deferred or deferred_id is not None

    def _finish(self, end: Callable[[], tuple[Amounts, Row]], request_id: str = "") -> None:
        if self._ends_now():
            settlements.apply(lambda: self._settlement(end, request_id))

    def _ends_now(self) -> bool:
        with self._lock:
            before, self._finished = self._finished, True
        return not before

    def _settlement(self, end: Callable[[], tuple[Amounts, Row]], request_id: str) -> Settlement:
        """Raises StoreUnavailable while a call admitted without the store cannot be planned."""
        if self.plan.version == UNKNOWN_VERSION:
            attempt, attribution, caps = self.plan.attempt, self.plan.attribution, self.charge.runs
            now, known = self.created_at, policy.confirmed()
            self.plan = plan(attempt, attribution, caps, known, now, unmetered=True)
            self.amounts, self.budgets = self.plan.amounts, self.plan.budgets
            self.row = self._begun()
        actual, final = end()
        row = self.row | final | {"provider_request_id": request_id[:200]}
        row["flags"] = sorted({*self.row["flags"], *final["flags"]})
        self._return_to_runs(actual)
        return Settlement(id=self.id, actual=actual, row=row)

    def take_from_runs(self, more: Amounts) -> None:
        """Count it in the caps of the request or job; CapExceeded, and nothing counted, if full."""
        micros = more.cost_micros or 0
        try:
            if runs.take(self.charge.runs, micros, more.calls, observe=self.plan.observe):
                self.row["flags"] = sorted({*self.row["flags"], "would_refuse"})
        except CapExceeded as error:
            error.trace_id = self.charge.trace_id
            raise
        self._taken_micros += micros

    def give_back_to_runs(self, held: Amounts) -> None:
        micros = held.cost_micros or 0
        runs.give_back(self.charge.runs, micros, held.calls)
        self._taken_micros -= micros

    def _return_to_runs(self, actual: Amounts) -> None:
        unused = self._taken_micros - (actual.cost_micros or 0)
        runs.give_back(self.charge.runs, unused, 1 - actual.calls)
