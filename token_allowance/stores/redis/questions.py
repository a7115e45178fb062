"""How a request is put to a script: its keys and its arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from token_allowance.limits import Amounts, Budget
from token_allowance.stores.base import Request, Room, Row
from token_allowance.stores.redis.asking import Question
from token_allowance.stores.redis.holds import Holds, written
from token_allowance.stores.redis.names import Names, lasts_milliseconds
from token_allowance.stores.redis.scripts import script

Fresh = Callable[[Names, Budget], bool]  # is a missing counter zero, unless it was opened?
LEFT_OUT: tuple[Any, ...] = (None, "", [])  # what a column of the ledger is by default
NOTED = json.dumps(["would_refuse"])


def reserve(
    names: Names, request: Request, holds: Holds, words: str, fresh: Fresh, events_most: int
) -> Question:
    """``words``: "c" confirmed, "q" with its queues, "o" to open what is missing and ``fresh``."""
    row, budgets = request.row, request.budgets
    words += "d" if request.may_degrade else ""
    reservation = names.reservation(row["id"])
    idem = reservation
    if row["idempotency_key"]:
        idem = names.idempotent(row["tenant"], row["idempotency_key"])
    keys = [*names.head, reservation, *holds.counters(names), names.leases, names.events, idem]
    arguments = [
        names.epoch,
        request.version,
        words,
        f"R|{holds.text}",
        _milliseconds(request),
        document(row, holds, lease_ms=_milliseconds(request)),
        holds.units,
        *_amounts(request.amounts),
        json.dumps([*row["flags"], "would_refuse"]) if row["flags"] else NOTED,
        str(request.ticket or ""),
        events_most,
        *[_limit(request, budget) for budget in budgets],
        *holds.slices(),
    ]
    if "q" in words:
        keys += [names.queue_of(budget.key) for budget in budgets]
    if "o" in words:
        keys += [names.opened(budget.key) for budget in budgets]
        for budget in budgets:
            begins = "1" if fresh(names, budget) else "0"
            lasts = lasts_milliseconds(budget, request.now)
            arguments += [begins, budget.key, budget.since, lasts]
    return script("reserve"), keys, arguments


def rooms(request: Request, answer: Sequence[Any]) -> tuple[Room, ...]:
    """The budgets of an answer that names them by place, used and reserved."""
    figures = (answer[i : i + 3] for i in range(0, len(answer), 3))
    return tuple(Room(request.budgets[i - 1], int(u), int(r)) for i, u, r in figures)


def due(names: Names, most: int) -> Question:
    return script("due"), [names.marker, names.leases], [names.epoch, most]


def look(names: Names) -> Question:
    return script("look"), [names.marker], [names.epoch]


def extend(names: Names, request: Request, holds: Holds, deferred_id: str | None) -> Question:
    after = holds.more(request.amounts)
    known = {budget.held_in: budget for budget in request.budgets}
    keys = [names.marker, names.gate, names.reservation(request.id), *holds.counters(names)]
    micros, tokens, _ = after.whole
    event = {
        "reserved_micros": micros,
        "reserved_tokens": tokens,
        "deferred_id": deferred_id or "",
        "holds": after.ledger(),
        "lease_ms": _milliseconds(request),
    }
    arguments = [
        names.epoch,
        f"R|{holds.text}",
        f"R|{after.text}",
        _milliseconds(request),
        written(event),
        holds.units,
        *_amounts(request.amounts),
        *[_hard(request, known[key]) if key in known else "" for key, *_ in holds.entries],
        *holds.slices(),
    ]
    return script("extend"), [*keys, names.leases, names.events], arguments


def document(row: Row, holds: Holds, **more: Any) -> str:
    """A ledger row as an event carries it."""
    kept = {name: value for name, value in row.items() if value not in LEFT_OUT}
    kept["holds"] = holds.ledger()
    return written(kept | more)


def _amounts(amounts: Amounts) -> tuple[int, int, int]:
    return amounts.cost_micros or 0, amounts.tokens, amounts.calls


def _limit(request: Request, budget: Budget) -> str:
    if not budget.enforced:
        return ""
    stop = budget.limit.stop_amount
    if not request.hard(budget):
        return f"~{stop}"
    level = request.degrades_at(budget)
    written = str(stop) if level is None else f"{stop}:{level}"
    return f"!{written}" if budget.is_cap else written


def _hard(request: Request, budget: Budget) -> str:
    return str(budget.limit.stop_amount) if request.hard(budget) else ""


def _milliseconds(request: Request) -> int:
    return int(request.lease_seconds * 1000)
