"""The queues of calls that wait for room: who stands before whom (protocol 15).

A ticket's place is its own in every queue alike, so two calls never wait for each other; it lasts
three seconds unless its call asks again, so that a dead caller blocks nobody for longer.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from token_allowance.stores.base import Decision, Outcome, Request, Room
from token_allowance.stores.connections import written_id

TICKET_SECONDS = 3
LEAVE = "DELETE FROM token_allowance_ticket WHERE call = %s"


def number(ticket: UUID) -> int:
    """A ticket's place: the half of a UUIDv7 that has the time in it, which fits a bigint."""
    return ticket.int >> 64


def keeps_out(request: Request, room: Room, rank: int) -> bool:
    """Does this budget refuse the call, or do others stand before it who wait for its room?"""
    need, cap = request.need(room.budget), request.cap(room.budget)
    if need <= 0 or cap is None or not request.hard(room.budget):
        return False
    return rank > 0 or room.used + room.reserved + need > cap


def may_queue(request: Request, blocking: Sequence[Room]) -> bool:
    """Do only calls in flight keep it out, so that waiting can help? Never out of a cap."""
    return all(
        not room.budget.is_cap
        and room.used + request.need(room.budget) <= room.budget.limit.stop_amount
        for room in blocking
    )


class Queues:
    """The queues of one process, for a store that has a lock around them."""

    def __init__(self) -> None:
        self._until: dict[str, dict[UUID, float]] = {}

    def rank(self, request: Request, key: str, now: float) -> int:
        """How many live tickets stand before the call in one queue; ``now`` in seconds."""
        own = request.ticket
        return sum(
            until > now and ticket != own and (own is None or number(ticket) < number(own))
            for ticket, until in self._until.get(key, {}).items()
        )

    def join(self, ticket: UUID, keys: Sequence[str], now: float) -> None:
        """Stand in these queues for another three seconds."""
        for key in keys:
            self._until.setdefault(key, {})[ticket] = now + TICKET_SECONDS
        self._without(lambda _, until: until <= now)

    def leave(self, ticket: UUID) -> None:
        self._without(lambda other, _: other == ticket)

    def _without(self, ends: Callable[[UUID, float], bool]) -> None:
        left = {
            key: {t: until for t, until in queue.items() if not ends(t, until)}
            for key, queue in self._until.items()
        }
        self._until = {key: queue for key, queue in left.items() if queue}


def refused(
    connection: BaseDatabaseWrapper,
    cursor: Any,
    request: Request,
    rooms: Sequence[Room],
    waiting: bool,
) -> Decision | None:
    """The refusal of a call, which then stands in line if it waits; None if it has room; SQLite."""
    now = dt.datetime.now(dt.UTC)
    before = _ranks(connection, cursor, request, now) if waiting else {}
    refusing = [r for r in rooms if keeps_out(request, r, before.get(r.budget.key, 0))]
    if not refusing:
        return None
    if request.ticket and may_queue(request, refusing):
        _join(connection, cursor, request.ticket, refusing, now)
    rank = max(before.get(room.budget.key, 0) for room in refusing)
    return Decision(Outcome.REFUSED, tuple(refusing), rank)


def sweep(connection: BaseDatabaseWrapper, cursor: Any, now: dt.datetime) -> None:
    """Forget tickets whose callers have died; SQLite."""
    cursor.execute(
        "DELETE FROM token_allowance_ticket WHERE until <= %s", [_moment(connection, now)]
    )


def leave(connection: BaseDatabaseWrapper, ticket: UUID) -> None:
    with connection.cursor() as cursor:
        cursor.execute(LEAVE, [written_id(connection, ticket)])


def _ranks(
    connection: BaseDatabaseWrapper, cursor: Any, request: Request, now: dt.datetime
) -> dict[str, int]:
    """How many live tickets stand before the call in the queue of each of its budgets."""
    marks = ", ".join(["%s"] * len(request.budgets))
    before, own = "", request.ticket
    values: list[Any] = [_moment(connection, now), *(b.key for b in request.budgets)]
    if own is not None:
        before = "AND number < %s AND call <> %s"
        values += [number(own), own.hex]
    cursor.execute(
        "SELECT key, count(*) FROM token_allowance_ticket "
        f"WHERE until > %s AND key IN ({marks}) {before} GROUP BY key",
        values,
    )
    return dict(cursor.fetchall())


def _join(
    connection: BaseDatabaseWrapper,
    cursor: Any,
    ticket: UUID,
    rooms: Sequence[Room],
    now: dt.datetime,
) -> None:
    until = _moment(connection, now + dt.timedelta(seconds=TICKET_SECONDS))
    for room in rooms:
        cursor.execute(
            "INSERT INTO token_allowance_ticket (call, key, number, until) VALUES (%s, %s, %s, %s) "
            "ON CONFLICT (key, call) DO UPDATE SET until = excluded.until",
            [ticket.hex, room.budget.key, number(ticket), until],
        )
    sweep(connection, cursor, now)


def _moment(connection: BaseDatabaseWrapper, moment: dt.datetime) -> Any:
    return connection.ops.adapt_datetimefield_value(moment)
