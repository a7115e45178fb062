"""DatabaseStore on SQLite: the same steps as the stored functions, one writer at a time.

BEGIN IMMEDIATE takes the write lock before anything is read, so nothing can change in between.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from typing import Any
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from token_allowance import keys
from token_allowance.limits import NOTHING, Amounts, Budget, Unit
from token_allowance.stores import adjustments, base, charges, ledger, slices, tickets
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
from token_allowance.stores.ledger import DOCUMENTS, MOMENTS, TABLE

STATE_FIELDS = (
    "state", "flags", "holds", "cost_micros", "input_tokens", "output_tokens", "settled_at",
    "reserved_micros", "reserved_tokens", "expires_at",
)  # fmt: skip


def reserve(connection: BaseDatabaseWrapper, request: Request) -> Decision | list[Budget]:
    with ledger.transaction(connection), connection.cursor() as cursor:
        if _known(cursor, request.row):
            return Decision(Outcome.REPEAT)
        version, waiting = _version(cursor)
        if version != request.version:
            return Decision(Outcome.STALE)
        rooms, unseeded = _look(cursor, request.budgets)
        if unseeded:
            return unseeded
        if degraded := request.degraded(rooms):
            return degraded
        if refused := tickets.refused(connection, cursor, request, rooms, waiting):
            return refused
        if waiting and request.ticket:
            cursor.execute(tickets.LEAVE, [request.ticket.hex])
        tight = [room for room in rooms if _exceeds(request, room)]
        for budget in request.budgets:
            _hold(cursor, budget, request.need(budget))
        row = {**request.row, "holds": base.holds(request), "expires_at": _lease(request)}
        row["flags"] = [*row["flags"], *(["would_refuse"] if tight else [])]
        _insert(connection, cursor, row)
        return Decision(Outcome.ADMITTED)


def settle(connection: BaseDatabaseWrapper, settlement: Settlement) -> Outcome:
    with ledger.transaction(connection), connection.cursor() as cursor:
        row = _read(cursor, settlement.id)
        final = settlement.row
        freed = {"idempotency_key": ""} if final["state"] == "released" else {}
        if row is None:
            _insert(connection, cursor, final | freed)
            _move(cursor, final["holds"], settlement.actual, held=False, charged=False)
            row, outcome = final, Outcome.LATE
        elif row["state"] == "reserved":
            _move(cursor, row["holds"], settlement.actual, held=True, charged=False)
            outcome = Outcome(final["state"])
        elif charges.corrects(row, final):
            charged = row["settled_at"] is not None
            _move(cursor, row["holds"], settlement.actual, held=False, charged=charged)
            outcome = Outcome.LATE
        else:
            return _again(connection, cursor, settlement.id, row, final)
        late = ["late"] if outcome is Outcome.LATE else []
        flags = sorted({*row["flags"], *final["flags"], *late})
        changes = {name: final[name] for name in ("state", *FINAL)} | {"flags": flags} | freed
        _update(connection, cursor, settlement.id, changes)
        return outcome


def extend(connection: BaseDatabaseWrapper, request: Request, deferred_id: str | None) -> Decision:
    with ledger.transaction(connection), connection.cursor() as cursor:
        row = _read(cursor, request.id)
        if row is None or row["state"] != "reserved":
            return Decision(Outcome.GONE)
        rooms, _ = _look(cursor, request.budgets)
        refusing = tuple(r for r in rooms if request.hard(r.budget) and _exceeds(request, r))
        if refusing:
            return Decision(Outcome.REFUSED, refusing)
        for key, unit, _ in row["holds"]:  # also of limits made since, unknown to the caller
            cursor.execute(
                "UPDATE token_allowance_counter SET reserved = reserved + %s WHERE key = %s",
                [request.amounts.of(Unit(unit)), key],
            )
        changes: Row = {
            "holds": charges.extended(row["holds"], request.amounts),
            "expires_at": max(_moment(row["expires_at"]), _moment(_lease(request))).isoformat(),
            "reserved_tokens": row["reserved_tokens"] + request.amounts.tokens,
        }
        if row["reserved_micros"] is not None:
            changes["reserved_micros"] = row["reserved_micros"] + request.amounts.of(Unit.COST)
        if deferred_id is not None:
            changes["deferred_id"] = deferred_id
        _update(connection, cursor, request.id, changes)
        return Decision(Outcome.EXTENDED)


def expire(connection: BaseDatabaseWrapper, now: dt.datetime, charge: bool, most: int) -> int:
    moment = dt.datetime.now(dt.UTC)
    due_at = connection.ops.adapt_datetimefield_value(moment)
    with ledger.transaction(connection), connection.cursor() as cursor:
        tickets.sweep(connection, cursor, moment)
        cursor.execute(
            f"SELECT id FROM {TABLE} WHERE state = 'reserved' AND expires_at < %s "
            "ORDER BY expires_at LIMIT %s",
            [due_at, most],
        )
        due = [UUID(found[0]) for found in cursor.fetchall()]
        for id in due:
            row = _read(cursor, id)
            assert row is not None
            kept = Amounts(row["reserved_micros"], row["reserved_tokens"])
            _move(cursor, row["holds"], kept if charge else NOTHING, held=True, charged=False)
            changes: Row = {"state": "expired"}
            if charge:
                changes |= {
                    "flags": sorted({*row["flags"], "estimated"}),
                    "cost_micros": row["reserved_micros"],
                    "cost_exact": row["reserved_micros"],
                    "input_tokens": row["reserved_tokens"],
                    "settled_at": now.isoformat(),
                }
            _update(connection, cursor, id, changes)
        return len(due)


def seed(connection: BaseDatabaseWrapper, budget: Budget, again: bool) -> Drift:
    with ledger.transaction(connection), connection.cursor() as cursor:
        return ledger.seed(connection, cursor, budget, again=again)


def adjust(
    connection: BaseDatabaseWrapper, budget: Budget, amount: int | None, row: Row
) -> Adjusted:
    with ledger.transaction(connection), connection.cursor() as cursor:
        ledger.seed(connection, cursor, budget, again=False)
        return adjustments.adjust(connection, cursor, budget, amount, row)


def _known(cursor: Any, row: Row) -> bool:
    cursor.execute(
        f"SELECT 1 FROM {TABLE} WHERE id = %s "
        "OR (NOT (idempotency_key = '') AND idempotency_key = %s AND tenant = %s)",
        [UUID(row["id"]).hex, row["idempotency_key"], row["tenant"]],
    )
    return cursor.fetchone() is not None


def _version(cursor: Any) -> tuple[int, bool]:
    """The policy's version, and whether anybody waits for room."""
    cursor.execute(
        "SELECT coalesce(sum(number), 0), EXISTS (SELECT 1 FROM token_allowance_ticket) "
        "FROM token_allowance_policyversion"
    )
    version, waiting = cursor.fetchone()
    return int(version), bool(waiting)


def _look(cursor: Any, budgets: Any) -> tuple[list[Room], list[Budget]]:
    """Each budget's figures, and the budgets that must be seeded first."""
    marks = ", ".join(["%s"] * len(budgets))
    cursor.execute(
        f"SELECT key, used, reserved, since FROM token_allowance_counter WHERE key IN ({marks})",
        [budget.key for budget in budgets],
    )
    found = {key: (used, reserved, since) for key, used, reserved, since in cursor.fetchall()}
    rooms, unseeded = [], []
    for budget in budgets:
        used, reserved, since = found.get(budget.key, (0, 0, budget.since))
        rolls = budget.slice is not None
        rooms.append(slices.room(cursor, budget) if rolls else Room(budget, used, reserved))
        if since < budget.since or (budget.key not in found and not base.fresh(budget)):
            unseeded.append(budget)
    return rooms, unseeded


def _hold(cursor: Any, budget: Budget, amount: int) -> None:
    """Hold more in a counter, which is made if it is missing."""
    cursor.execute(
        "INSERT INTO token_allowance_counter (key, used, reserved, since) VALUES (%s, 0, %s, %s) "
        "ON CONFLICT (key) DO UPDATE SET reserved = reserved + excluded.reserved",
        [budget.key, amount if budget.slice is None else 0, budget.since],
    )
    if budget.slice is not None:
        slices.hold(cursor, budget, budget.slice, amount)


def _exceeds(request: Request, room: Room) -> bool:
    need, cap = request.need(room.budget), request.cap(room.budget)
    return need > 0 and cap is not None and room.used + room.reserved + need > cap


def _move(cursor: Any, holds: Any, actual: Amounts, *, held: bool, charged: bool) -> None:
    for key, unit, amount in holds:
        used = actual.of(Unit(unit)) - (amount if charged else 0)
        cursor.execute(
            "UPDATE token_allowance_counter SET used = used + %s, reserved = reserved - %s "
            "WHERE key = %s",
            [used, amount if held else 0, key],
        )
        if cursor.rowcount or held or charged:
            continue
        if whole := keys.whole(key):
            slices.add_late(cursor, whole, key, used)
        else:  # not counted yet: a mark that the next reserve must seed it, and not begin at zero
            cursor.execute(
                "INSERT INTO token_allowance_counter (key, used, reserved, since) "
                "VALUES (%s, 0, 0, -1)",
                [key],
            )


def _again(connection: BaseDatabaseWrapper, cursor: Any, id: UUID, row: Row, final: Row) -> Outcome:
    same = ("state", "cost_micros", "input_tokens", "output_tokens")
    if final["state"] == "released" or all(row[name] == final[name] for name in same):
        return Outcome.REPEAT
    _update(connection, cursor, id, {"flags": sorted({*row["flags"], "conflict"})})
    return Outcome.CONFLICT


def _read(cursor: Any, id: UUID) -> Row | None:
    cursor.execute(f"SELECT {', '.join(STATE_FIELDS)} FROM {TABLE} WHERE id = %s", [id.hex])
    found = cursor.fetchone()
    if found is None:
        return None
    row = dict(zip(STATE_FIELDS, found, strict=True))
    return row | {name: json.loads(row[name]) for name in ("flags", "holds")}


def _insert(connection: BaseDatabaseWrapper, cursor: Any, row: Row) -> None:
    names = ", ".join(f'"{name}"' for name in row)
    marks = ", ".join(["%s"] * len(row))
    cursor.execute(f"INSERT INTO {TABLE} ({names}) VALUES ({marks})", _values(connection, row))


def _update(connection: BaseDatabaseWrapper, cursor: Any, id: UUID, changes: Row) -> None:
    sets = ", ".join(f'"{name}" = %s' for name in changes)
    cursor.execute(
        f"UPDATE {TABLE} SET {sets} WHERE id = %s", [*_values(connection, changes), id.hex]
    )


def _values(connection: BaseDatabaseWrapper, row: Row) -> list[Any]:
    """Values as Django's own fields would store them on SQLite."""
    values: list[Any] = []
    for name, value in row.items():
        if value is None:
            values.append(None)
        elif name == "id":
            values.append(UUID(value).hex)
        elif name in DOCUMENTS:
            values.append(json.dumps(value))
        elif name in MOMENTS:
            values.append(connection.ops.adapt_datetimefield_value(_moment(value)))
        else:
            values.append(value)
    return values


def _lease(request: Request) -> str:
    end = time.time() + request.lease_seconds
    return dt.datetime.fromtimestamp(end, dt.UTC).isoformat()


def _moment(value: dt.datetime | str) -> dt.datetime:
    """A column's value: a naive datetime where Django has registered its converters."""
    moment = dt.datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
