"""What every store does, as values and one abstract class."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any
from uuid import UUID

from token_allowance import rolling
from token_allowance.limits import Amounts, Budget, microseconds

Row = dict[str, Any]  # a ledger row by column name, values as JSON has them
SETTLING_IN_MICROS = 3_600_000_000


class Outcome(StrEnum):
    ADMITTED = "admitted"
    REFUSED = "refused"  # no counter moved
    DEGRADE = "degrade"  # no counter moved: ask with the cheaper plan, a level is reached
    STALE = "stale"  # the policy has changed: load it and ask again
    REPEAT = "repeat"  # the same id was admitted before
    SETTLED = "settled"
    RELEASED = "released"
    LATE = "late"  # charged after its lease had ended, or unseen before
    CONFLICT = "conflict"  # another answer for a final reservation: recorded, changes nothing
    EXTENDED = "extended"
    KEPT = "kept"  # written down: the store could not be told, and will be
    GONE = "gone"  # the reservation is final or unknown


@dataclass(frozen=True, slots=True)
class Room:
    """A budget's figures at one moment, in its own unit.

    ``slices`` are what each slice of a rolling window has used and reserved, by its number.
    """

    budget: Budget
    used: int
    reserved: int
    slices: tuple[tuple[int, int], ...] = ()

    @property
    def available(self) -> int:
        return max(0, self.budget.limit.stop_amount - self.used - self.reserved)

    def resets_at(self, need: int = 0) -> dt.datetime | None:
        """When the window ends; if it rolls, when enough slices have left it to admit ``need``.

        None if it never ends, or if nothing is in a rolling window that could leave it.
        """
        limit, left, moment = self.budget.limit, self.used + self.reserved, None
        if self.budget.slice is None:
            return self.budget.window.end
        for number, amount in sorted(self.slices):
            if amount > 0:
                left -= amount
                moment = rolling.leaves_at(limit.rolling_seconds, number)
                if left + max(1, need) <= limit.stop_amount:
                    break
        return moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One reservation asked for: ``amounts`` from each of ``budgets`` in lock order, or nothing."""

    id: UUID
    version: int
    budgets: Sequence[Budget]
    amounts: Amounts
    lease_seconds: float
    row: Row  # the ledger row in state reserved; the store sets expires_at by its own clock
    now: dt.datetime
    observe: bool = False  # nothing refuses; what would have is flagged ``would_refuse``
    confirmed: bool = False  # its version was read from the database since the call began
    #: A cheaper plan is at hand: DEGRADE may be answered. Not where it is asked for already.
    may_degrade: bool = False
    #: It waits for room: its place in line, of all queues alike, is by this UUIDv7 (protocol 15).
    ticket: UUID | None = None

    def need(self, budget: Budget) -> int:
        return self.amounts.of(budget.limit.unit)

    def hard(self, budget: Budget) -> bool:
        return budget.enforced and not self.observe and not budget.limit.observe

    def cap(self, budget: Budget) -> int | None:
        """Above this the call is refused, or noted; None: it is only counted."""
        return budget.limit.stop_amount if budget.enforced else None

    def degrades_at(self, budget: Budget) -> int | None:
        """From this ``used`` on DEGRADE is answered; None: whatever is used."""
        return budget.limit.degrade_amount if self.may_degrade and self.hard(budget) else None

    def degraded(self, rooms: Sequence[Room]) -> Decision | None:
        """DEGRADE with the budgets that have reached their level, if any has."""
        at = [(room, self.degrades_at(room.budget)) for room in rooms]
        reached = tuple(room for room, level in at if level is not None and room.used >= level)
        return Decision(Outcome.DEGRADE, reached) if reached else None


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a Request. ``rooms`` are the budgets that refused it, or that have reached the
    level at which the cheaper plan is served, as they were seen."""

    outcome: Outcome
    rooms: tuple[Room, ...] = ()
    rank: int = 0  # how many stand before it in the longest of the queues that it stands in


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """How an attempt ended. ``row`` is the whole final ledger row, so that a store which never saw
    the reservation can still charge it, once (protocol 11)."""

    id: UUID
    actual: Amounts
    row: Row


@dataclass(frozen=True, slots=True)
class Drift:
    """A counter that did not equal its ledger rows, and what it was set to."""

    key: str
    used: tuple[int, int]
    reserved: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Adjusted:
    """What an adjustment added to ``used`` of a budget, in its unit, and the figures after it."""

    amount: int
    room: Room


class Store(ABC):
    """Counts budgets. Every method is atomic, may be called from any thread, and raises
    StoreUnavailable when the store cannot be asked. No method keeps anything open between calls.
    """

    #: Does reserve compare the policy version itself? If not, the caller reads it before each call.
    checks_version = False
    #: Can a caller wait for room that calls in flight hold?
    can_wait = False
    #: Do several processes share the counters?
    shared = True

    @abstractmethod
    def reserve(self, request: Request) -> Decision:
        """Take the needs from every budget and write the ledger row, or change nothing.

        After ADMITTED or REPEAT the caller must settle or release; after STALE it loads the policy
        and asks again; after DEGRADE, which ``may_degrade`` allows, it asks with the cheaper plan;
        after REFUSED it must not dispatch. If only calls in flight keep it out, its ticket stands
        in the queue of each budget in its way for 3 s, and others are kept behind it.
        """

    @abstractmethod
    def settle(self, settlement: Settlement) -> Outcome:
        """Replace the hold by what was used, even if that is more. Repeating changes nothing."""

    def release(self, settlement: Settlement) -> Outcome:
        """Give the hold back: a settlement whose row says ``released`` and that used nothing.

        The row loses its idempotency key, so that the next call with it is reserved anew.
        """
        return self.settle(settlement)

    @abstractmethod
    def extend(self, request: Request, *, deferred_id: str | None = None) -> Decision:
        """Lengthen the lease of ``request.id`` and add ``request.amounts`` to what it holds."""

    @abstractmethod
    def expire(self, now: dt.datetime, *, charge: bool, most: int = 500) -> int:
        """End reservations whose lease has run out by the store's clock; how many there were."""

    @abstractmethod
    def usage(self, budgets: Sequence[Budget]) -> list[Room]:
        """The figures of these budgets, without creating anything."""

    @abstractmethod
    def find(
        self, *, deferred_id: str = "", tenant: str = "", idempotency_key: str = ""
    ) -> Row | None:
        """The ledger row that was deferred under this id, or made with this idempotency key."""

    @abstractmethod
    def rebuild(self, now: dt.datetime) -> list[Drift]:
        """Set every counter of an open window to the sum of its ledger rows and adjustments; what
        had drifted."""

    @abstractmethod
    def adjust(self, budget: Budget, amount: int | None, row: Row) -> Adjusted:
        """Add to what the budget has used, in its unit; None takes off all of it (case C68).

        ``row`` has the id, reason, by and created_at of the Adjustment rows that are written with
        it: one for each counter that moves. ``used`` never falls below 0: less is taken off then,
        and of nothing no row is written. Repeating an id changes nothing.
        """

    def may_wait(self) -> bool:
        """Can the caller of now wait, while others finish their calls?"""
        return self.can_wait

    def leave(self, ticket: UUID) -> None:  # noqa: B027 - not every store can wait
        """Take a call that no longer waits out of the queues."""

    def check(self) -> list[str]:
        """Sentences on what is wrong with this store's configuration."""
        return []

    def drain(self) -> int:
        """Take over what the store has decided into the ledger; how many events there were."""
        return 0

    def behind_seconds(self) -> float | None:
        """How long the ledger's oldest missing event has waited for it; None if none ever does."""
        return None

    def changing(self) -> None:  # noqa: B027 - most stores read the version where it is written
        """A policy write is about to commit."""

    def changed(self) -> None:  # noqa: B027
        """A policy write has been committed: every reserve from now on must obey it."""


def fresh(budget: Budget) -> bool:
    """True if a missing counter is zero: its window began well after tracking did.

    The hour covers transactions that take long to commit and clocks that differ; within it the
    counter is seeded from the ledger instead, which costs one query and is never wrong.
    """
    start = budget.window.start
    return budget.untouched if start is None else began_after(start, budget.since)


@lru_cache(maxsize=2048)
def began_after(start: dt.datetime, since: int) -> bool:
    """Did a window begin well after this moment, in microseconds since 1970?"""
    return microseconds(start) >= since + SETTLING_IN_MICROS


def holds(request: Request) -> list[list[Any]]:
    """``[key, unit, amount]`` for each budget: what the ledger row remembers of the counters."""
    return [[b.held_in, b.limit.unit.value, request.need(b)] for b in request.budgets]


def rolled(budget: Budget, figures: Mapping[int, tuple[int, int]]) -> Room:
    """A rolling budget's room by (used, reserved) of each of its slices."""
    used, reserved = (sum(figure[place] for figure in figures.values()) for place in (0, 1))
    return Room(budget, used, reserved, tuple((n, sum(figures[n])) for n in sorted(figures)))


def kept(budget: Budget) -> Budget:
    """The budget with all that its counters keep: a rolling one keeps slices it does not count."""
    if budget.slice is None:
        return budget
    return replace(budget, window=rolling.kept(budget.limit.rolling_seconds, budget.slice))
