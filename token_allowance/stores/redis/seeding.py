"""Counters from the ledger: where one is missing, is not known to be right, or shall be checked."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper

from token_allowance import rolling
from token_allowance.counters import budget_of
from token_allowance.exceptions import StoreUnavailable
from token_allowance.limits import Budget
from token_allowance.stores import adjustments, base, charges, ledger
from token_allowance.stores.base import Adjusted, Drift, Room, Row
from token_allowance.stores.connections import run
from token_allowance.stores.redis import drainage
from token_allowance.stores.redis import holds as held
from token_allowance.stores.redis.asking import PATIENCE_SECONDS
from token_allowance.stores.redis.gate import Command, Gate, closed
from token_allowance.stores.redis.names import (
    Names,
    kept_milliseconds,
    lasts_milliseconds,
)
from token_allowance.stores.redis.recovery import restored

if TYPE_CHECKING:
    from token_allowance.stores.redis.store import RedisStore

PAUSE_SECONDS = 0.01
BUSY = "Budgets are being counted by somebody else; try again."
ATTACHED = (held.OPEN, held.EXPIRED, held.CHARGED)  # what still moves a counter when it ends
Figures = dict[int, tuple[int, int]]  # (used, reserved) by slice; of slice 0 where none rolls


def seed(store: RedisStore, budgets: Sequence[Budget], now: dt.datetime) -> None:
    """Count these budgets from the ledger, unless somebody else is at it: then it is done soon."""
    with closed(store.wire, store.asking.names) as gate:
        if gate is None:
            time.sleep(PAUSE_SECONDS)
            return
        drainage.drain(store)
        for budget in budgets:
            if _counted(store, budget) is None:
                _seed(store, gate, budget, now)


def rebuild(store: RedisStore, now: dt.datetime) -> list[Drift]:
    """Set every counter of an open window to its ledger rows; what had drifted."""
    budgets, drifts = _opened(store, now), []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while budgets and time.monotonic() < deadline:
        with closed(store.wire, store.asking.names) as gate:
            if gate is not None:
                drift = _rebuilt(store, gate, budgets.pop(0), now)
                drifts += [drift] if drift else []
                deadline = time.monotonic() + PATIENCE_SECONDS
                continue
        time.sleep(PAUSE_SECONDS)
    if budgets:
        raise StoreUnavailable(BUSY)
    return drifts


def _rebuilt(store: RedisStore, gate: Gate, budget: Budget, now: dt.datetime) -> Drift | None:
    drainage.drain(store)
    before = _counted(store, budget)
    if before is None:
        return None
    figures = _seed(store, gate, budget, now)
    before, figures = _spent(budget, before), _spent(budget, figures)
    old, new = _total(budget, before), _total(budget, figures)
    if before == figures:
        return None
    return Drift(budget.key, (old[0], new[0]), (old[1], new[1]))


def adjust(store: RedisStore, budget: Budget, amount: int | None, row: Row) -> Adjusted:
    """Write the adjustment and count the budget anew, which adds it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with closed(store.wire, store.asking.names) as gate:
            if gate is not None:
                return _adjust(store, gate, budget, amount, row)
        time.sleep(PAUSE_SECONDS)
    raise StoreUnavailable(BUSY)


def figures(store: RedisStore, budgets: Sequence[Budget]) -> list[Room]:
    """Each budget by its counter, or by its ledger rows where no counter has been opened."""
    rooms, drained = [], False
    for budget in budgets:
        found = _counted(store, budget)
        if found is None and not _begins_at_zero(store, budget):
            drained = drained or drainage.drain(store) >= 0
            found = run(store.alias, partial(_sums, budget))
        rooms.append(_room(budget, found or {}))
    return rooms


def dated(store: RedisStore, rooms: Iterable[Room]) -> tuple[Room, ...]:
    """These rooms; the rolling ones with their slices, which say when there is room again."""
    return tuple(
        room if room.budget.slice is None
        else Room(
            room.budget,
            room.used,
            room.reserved,
            _room(room.budget, _counted(store, room.budget) or {}).slices,
        )
        for room in rooms
    )  # fmt: skip


def _adjust(
    store: RedisStore, gate: Gate, budget: Budget, amount: int | None, row: Row
) -> Adjusted:
    drainage.drain(store)
    names = store.asking.names
    used, reserved = names.counter(budget.key, budget.since)
    listed = ("HSET", names.opened(budget.key), budget.key, budget.since)
    gate.write([("DEL", used), ("DEL", reserved), listed])  # if we die it was lost, so it is seeded
    done = run(store.alias, lambda c: adjustments.record(c, budget, _sums(budget, c), amount, row))
    found = _seed(store, gate, budget, row["created_at"])
    return Adjusted(done, _room(budget, found))


def _seed(store: RedisStore, gate: Gate, budget: Budget, now: dt.datetime) -> Figures:
    """The gate is closed, and the ledger has taken over every event."""
    names = store.asking.names
    rows, found = run(store.alias, lambda c: _of_ledger(c, budget))
    commands = [*_attached(store, names, budget, rows), *_set(names, budget, found, now)]
    gate.write(commands)
    return found


def _of_ledger(connection: BaseDatabaseWrapper, budget: Budget) -> tuple[list[Row], Figures]:
    with connection.cursor() as cursor:
        rows = ledger.attach(connection, cursor, budget)
        return rows, ledger.sums(cursor, connection, base.kept(budget))


def _sums(budget: Budget, connection: BaseDatabaseWrapper) -> Figures:
    with connection.cursor() as cursor:
        return ledger.sums(cursor, connection, budget)


def _set(names: Names, budget: Budget, found: Figures, now: dt.datetime) -> list[Command]:
    used, reserved = names.counter(budget.key, budget.since)
    listed: Command = ("HSET", names.opened(budget.key), budget.key, budget.since)
    if budget.slice is None:
        lasts = lasts_milliseconds(budget, now)
        kept: tuple[Any, ...] = ("PX", lasts) if lasts else ()
        u, r = found.get(0, (0, 0))
        commands: list[Command] = [("SET", used, u, *kept), ("SET", reserved, r, *kept), listed]
        return [*commands, ("PEXPIRE", listed[1], lasts)] if lasts else commands
    total = _total(budget, found)
    milliseconds = kept_milliseconds(budget)
    length = rolling.slice_micros(budget.limit.rolling_seconds)
    fields: list[Any] = ["n", budget.slice, "u", total[0], "r", total[1]]
    fields += ["ms", milliseconds, "w", length]
    for number, (u, r) in found.items():
        fields += [f"u:{number}", u, f"r:{number}", r]
    return [("DEL", used), ("HSET", used, *fields), ("PEXPIRE", used, milliseconds), listed]


def _attached(
    store: RedisStore, names: Names, budget: Budget, rows: Sequence[Row]
) -> list[Command]:
    """Let what is open settle into this counter too, and bring back what Redis has lost of it."""
    commands: list[Command] = []
    for start in range(0, len(rows), 500):
        some = rows[start : start + 500]
        ids = [str(UUID(str(row["id"]))) for row in some]
        texts = store.wire.execute("MGET", *(names.reservation(id) for id in ids))
        for row, id, text in zip(some, ids, texts, strict=True):
            key, unit = charges.held_in(row, budget), budget.limit.unit
            amount = charges.held(row, unit)
            state = text[:1].decode() if text else ""
            before = held.read(text[2:]) if state in ATTACHED else held.of_row(row)
            after = before.with_counter(key, unit.value, amount, budget.since) or before
            if not text and row["state"] == "reserved":
                commands += restored(names, row, after)
            elif state in ATTACHED and after is not before:
                commands.append(("SET", names.reservation(id), f"{state}|{after.text}", "KEEPTTL"))
    return commands


def _counted(store: RedisStore, budget: Budget) -> Figures | None:
    """What the counter says; None if it is missing. Slices without any amount are left out."""
    used, reserved = store.asking.names.counter(budget.key, budget.since)
    if budget.slice is None:
        values = store.wire.execute("MGET", used, reserved)
        return None if None in values else {0: (int(values[0]), int(values[1]))}
    fields = store.wire.execute("HGETALL", used)
    if not fields:
        return None
    slices: dict[int, list[int]] = {}
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        kind, _, number = name.decode().partition(":")
        if number:
            slices.setdefault(int(number), [0, 0])["ur".index(kind)] = int(value)
    return {number: (u, r) for number, (u, r) in slices.items() if u or r}


def _begins_at_zero(store: RedisStore, budget: Budget) -> bool:
    names = store.asking.names
    listed = store.wire.execute("HEXISTS", names.opened(budget.key), budget.key)
    return store.fresh(names, budget) and not listed


def _spent(budget: Budget, found: Figures) -> Figures:
    """The figures that are not zero, of the slices that some question may still be about."""
    kept = range(1) if budget.slice is None else rolling.numbers_kept(budget.slice)
    return {n: figures for n, figures in found.items() if figures != (0, 0) and n in kept}


def _total(budget: Budget, found: Figures) -> tuple[int, int]:
    room = _room(budget, found)
    return room.used, room.reserved


def _room(budget: Budget, found: Figures) -> Room:
    if budget.slice is None:
        return Room(budget, *found.get(0, (0, 0)))
    counted = rolling.numbers(budget.slice)
    return base.rolled(budget, {n: f for n, f in found.items() if n in counted})


def _opened(store: RedisStore, now: dt.datetime) -> list[Budget]:
    """The budgets of all counters whose window has not ended."""
    found: dict[str, Budget] = {}
    cursor: Any = b"0"
    pattern = f"{store.asking.names.of_epoch}o:*"
    while True:
        cursor, lists = store.wire.execute("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
        for name in lists:
            fields = store.wire.execute("HGETALL", name)
            for key, since in zip(fields[::2], fields[1::2], strict=True):
                budget = budget_of(key.decode(), int(since), now)
                if budget.window.end is None or budget.window.end > now:
                    found[budget.key] = budget
        if cursor == b"0":
            return [found[key] for key in sorted(found)]
