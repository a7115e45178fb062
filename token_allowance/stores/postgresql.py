"""DatabaseStore on PostgreSQL: one stored function, one round trip, for each operation."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from functools import lru_cache
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
from token_allowance.stores.events import FINAL
from token_allowance.stores.roomy import Roomy
from token_allowance.stores.statements import one, texts

RESERVE = """SELECT status, marks::text, used::text, reserved::text, rank::text
    FROM token_allowance_reserve_v1(%s::jsonb, %s::jsonb)"""
SETTLE = "SELECT token_allowance_settle_v1(%s::bigint[], %s::jsonb)"
UNKNOWN = "unknown"  # the reservation: only its whole row can be charged
ENDING = ("id", "state", "flags", *FINAL)
EXTEND = """SELECT status, marks, used, reserved FROM token_allowance_extend_v1(
    %s, %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::boolean[], %s, %s, %s, %s, %s)"""
EXPIRE = "SELECT token_allowance_expire_v1(%s, %s, %s)"
LOCK = " FOR UPDATE"
ADMITTED = Decision(Outcome.ADMITTED)
written = json.JSONEncoder(separators=(",", ":")).encode  # made once: dumps makes one a call
roomy = Roomy()


def reserve(connection: BaseDatabaseWrapper, request: Request) -> Decision | list[Budget]:
    budgets = request.budgets
    row = {**request.row, "holds": base.holds(request)}
    status, *figures = texts(connection, RESERVE, [written(_call(request)), written(row)])
    if status == "admitted":
        roomy.keep(budget.key for budget in budgets)
        return ADMITTED
    marks, used, reserved, rank = (_numbers(text) for text in figures)
    roomy.drop(budgets[mark - 1].key for mark in marks)
    if status == "seed":
        return [budgets[mark - 1] for mark in marks]
    return _decision(request, str(status), marks, used, reserved, *rank)


def _call(request: Request) -> dict[str, Any]:
    """What the function is told; without what is the usual case."""
    budgets = request.budgets
    call = {
        "version": request.version,
        "keys": _array([_quoted(b.key) for b in budgets]),
        "needs": _array([request.need(b) for b in budgets]),
        "limits": _array([request.cap(b) for b in budgets]),
        "since": _array([b.since for b in budgets]),
        "lease_ms": _milliseconds(request),
    }
    if not request.ticket and roomy.has(budget.key for budget in budgets):
        call["sure"] = True
    call["fresh"] = _array([base.fresh(b) for b in budgets])
    if any(budget.slice is not None for budget in budgets):
        call["slices"] = _array([b.slice for b in budgets])
    if not all(request.hard(budget) for budget in budgets):
        call["hard"] = _array([request.hard(b) for b in budgets])
    if request.may_degrade:
        call["degrades"] = _array([request.degrades_at(b) for b in budgets])
    if request.ticket:
        call |= {"ticket": str(request.ticket), "number": tickets.number(request.ticket)}
    return call


def settle(connection: BaseDatabaseWrapper, settlement: Settlement) -> Outcome:
    actual = settlement.actual
    amounts = _array([actual.cost_micros or 0, actual.tokens, actual.calls])
    row = settlement.row
    ending = {name: row[name] for name in ENDING}
    (status,) = texts(connection, SETTLE, [amounts, written(ending)])
    if status == UNKNOWN:
        (status,) = texts(connection, SETTLE, [amounts, written(row)])
    return Outcome(str(status))


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
    return f"{{{','.join(['NULL' if value is None else str(value) for value in values])}}}"


@lru_cache(maxsize=20_000)
def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _numbers(text: str | None) -> list[int]:
    """The numbers of an array, or the one, as PostgreSQL writes them."""
    return [int(number) for number in text.strip("{}").split(",") if number] if text else []


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
