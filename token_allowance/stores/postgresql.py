"""DatabaseStore on PostgreSQL: one stored function, one round trip, for each operation."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from token_allowance.limits import Budget
from token_allowance.stores import adjustments, base, ledger, tickets
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
from token_allowance.stores.statements import one

RESERVE = """SELECT status, marks, used, reserved, rank
    FROM token_allowance_reserve_v1(%s::jsonb, %s::jsonb)"""
SETTLE = "SELECT token_allowance_settle_v1(%s::bigint[], %s::jsonb)"
EXTEND = """SELECT status, marks, used, reserved FROM token_allowance_extend_v1(
    %s, %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::boolean[], %s, %s, %s, %s, %s)"""
EXPIRE = "SELECT token_allowance_expire_v1(%s, %s, %s)"
LOCK = " FOR UPDATE"


def reserve(connection: BaseDatabaseWrapper, request: Request) -> Decision | list[Budget]:
    budgets = request.budgets
    row = {**request.row, "holds": base.holds(request)}
    call = {
        "version": request.version,
        "keys": _array([_quoted(b.key) for b in budgets]),
        "slices": _array([b.slice for b in budgets]),
        "needs": _array([request.need(b) for b in budgets]),
        "limits": _array([request.cap(b) for b in budgets]),
        "hard": _array([request.hard(b) for b in budgets]),
        "since": _array([b.since for b in budgets]),
        "fresh": _array([base.fresh(b) for b in budgets]),
        "lease_ms": _milliseconds(request),
    }
    if request.may_degrade:
        call["degrades"] = _array([request.degrades_at(b) for b in budgets])
    if request.ticket:
        call |= {"ticket": str(request.ticket), "number": tickets.number(request.ticket)}
    status, marks, used, reserved, rank = one(
        connection, RESERVE, [json.dumps(call), json.dumps(row)]
    )
    if status == "seed":
        return [budgets[mark - 1] for mark in marks]
    return _decision(request, status, marks, used, reserved, rank)


def settle(connection: BaseDatabaseWrapper, settlement: Settlement) -> Outcome:
    actual = settlement.actual
    amounts = _array([actual.cost_micros or 0, actual.tokens, actual.calls])
    return Outcome(one(connection, SETTLE, [amounts, json.dumps(settlement.row)])[0])


def extend(connection: BaseDatabaseWrapper, request: Request, deferred_id: str | None) -> Decision:
    budgets = request.budgets
    status, marks, used, reserved = one(
        connection,
        EXTEND,
        [
            request.id,
            [b.held_in for b in budgets],
            [None if b.slice is None else b.key for b in budgets],
            [b.slice for b in budgets],
            [request.cap(b) for b in budgets],
            [request.hard(b) for b in budgets],
            _milliseconds(request),
            request.amounts.cost_micros or 0,
            request.amounts.tokens,
            request.amounts.calls,
            deferred_id,
        ],
    )
    return _decision(request, status, marks, used, reserved)


def expire(connection: BaseDatabaseWrapper, now: dt.datetime, charge: bool, most: int) -> int:
    return int(one(connection, EXPIRE, [most, charge, now])[0])


def seed(connection: BaseDatabaseWrapper, budget: Budget, again: bool) -> Drift:
    """Sum the ledger while no reserve is under way, so that none is counted twice or missed.

    Open rows are locked before the counter, as settling does (protocol B).
    """
    with ledger.transaction(connection), connection.cursor() as cursor:
        _keep_reserves_out(cursor)
        return ledger.seed(connection, cursor, budget, again=again, lock=LOCK)


def adjust(
    connection: BaseDatabaseWrapper, budget: Budget, amount: int | None, row: Row
) -> Adjusted:
    with ledger.transaction(connection), connection.cursor() as cursor:
        _keep_reserves_out(cursor)
        ledger.seed(connection, cursor, budget, again=False, lock=LOCK)
        return adjustments.adjust(connection, cursor, budget, amount, row, lock=LOCK)


def _keep_reserves_out(cursor: Any) -> None:
    cursor.execute("SELECT set_config('lock_timeout', '10000', true)")
    cursor.execute("SELECT pg_advisory_xact_lock(8313, 1)")


def _array(values: Sequence[object]) -> str:
    """An array as PostgreSQL reads it from text: binding a list takes ten times as long."""
    return f"{{{','.join('NULL' if value is None else str(value) for value in values)}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _milliseconds(request: Request) -> int:
    return int(request.lease_seconds * 1000)


def _decision(
    request: Request,
    status: str,
    marks: list[int],
    used: list[int],
    reserved: list[int],
    rank: int = 0,
) -> Decision:
    outcome = Outcome(status)
    if outcome not in (Outcome.REFUSED, Outcome.DEGRADE):
        return Decision(outcome)
    rooms = (Room(request.budgets[m - 1], used[m - 1], reserved[m - 1]) for m in marks)
    return Decision(outcome, tuple(rooms), rank)
