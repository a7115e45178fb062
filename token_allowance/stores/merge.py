"""What events make of ledger rows. Values only.

Everything here is monotone: an event that has been taken over before changes nothing, and in
whatever pieces a stream is read, the same rows come of it (protocol 7).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from token_allowance.stores.base import Row
from token_allowance.stores.charges import corrects
from token_allowance.stores.events import (
    CONFLICT,
    DEFAULTS,
    EXPIRED,
    EXTENDED,
    FINAL,
    RESERVED,
    STATES,
    Event,
    content,
    lease_end,
    moment,
)

HELD = ("reserved_micros", "reserved_tokens")
LEASE = re.compile(rb'"lease_ms": ?([0-9]{1,12})[,}]')
FLAGS, KEY = b'"flags"', b'"idempotency_key"'  # what the end of a call may not repeat


def after(row: Row | None, event: Event, said: Row) -> Row | None:
    """The ledger row after this event, the same object if it changes nothing.

    ``said`` is the event's content. None: there is no row and none can be made of this.
    """
    if event.kind in STATES:
        if row is None and event.kind == EXTENDED:
            return None
        if row is None:
            return whole(said)
        if row["state"] in ("settled", "released"):
            return row
        return _held(row, said) if said["state"] == "reserved" else _ended(row, said)
    if row is None:
        return None
    if event.kind == CONFLICT:
        return row | _flagged(row, "conflict") if "conflict" not in row["flags"] else row
    if event.kind == EXPIRED and row["state"] == "reserved":
        return row | {"state": "expired"} | (_charged(row, said["at"]) if said["charge"] else {})
    return row


def _held(row: Row, said: Row) -> Row:
    """A reservation again: extensions only ever add, so whatever holds more is the later one."""
    if row["state"] != "reserved":
        return row
    changes: Row = {}
    if not set(row["flags"]).issuperset(said.get("flags", ())):
        changes = _flagged(row, *said["flags"])
    if "expires_at" in said and moment(said["expires_at"]) > moment(row["expires_at"]):
        changes["expires_at"] = said["expires_at"]
    more = [(said.get(name) or 0) - (row[name] or 0) for name in HELD]
    if min(more) >= 0:
        if max(more) > 0:
            changes["holds"] = said.get("holds", [])
            changes |= {name: said.get(name, 0) for name in HELD if row[name] is not None}
        if said.get("deferred_id", row["deferred_id"]) not in ("", row["deferred_id"]):
            changes["deferred_id"] = said["deferred_id"]
    return row | changes if changes else row


def _ended(row: Row, said: Row) -> Row:
    late: tuple[str, ...] = ()
    if row["state"] == "expired":
        if not corrects(row, said):
            return row
        late = ("late",)
    ended = row.copy()
    for name in FINAL:
        ended[name] = said.get(name, DEFAULTS[name])
    ended["state"] = said["state"]
    if said["state"] == "released":
        ended["idempotency_key"] = ""
    if late or said.get("flags"):
        ended |= _flagged(row, *said.get("flags", ()), *late)
    return ended


def _charged(row: Row, at: str) -> Row:
    """A call of which nothing was heard in time used what it held."""
    return {
        **_flagged(row, "estimated"),
        "cost_micros": row["reserved_micros"],
        "cost_exact": row["reserved_micros"],
        "input_tokens": row["reserved_tokens"],
        "settled_at": at,
    }


def _flagged(row: Row, *flags: str) -> Row:
    return {"flags": sorted({*row["flags"], *flags})}


def with_key_left_out(row: Row) -> Row:
    """The row of a call whose idempotency key another call has."""
    return row | {"idempotency_key": ""} | _flagged(row, "repeated_key")


def alone(events: Sequence[Event]) -> Row | None:
    """The row that these events of one reservation make of nothing, told by the last of them.

    None where that cannot be told, or is wrong: then each must be looked at. Most calls begin and
    end within one batch, and reading half of the documents is half of the work.
    """
    first, last = events[0], events[-1]
    if len(events) > 2 or last.kind not in STATES or last.kind == EXTENDED:
        return None
    lease = None
    if len(events) == 2:
        said = first.document
        if first.kind != RESERVED or last.kind == RESERVED or FLAGS in said or KEY in said:
            return None
        lease = LEASE.match(said, max(0, said.rfind(b'"lease_ms"')))
        if lease is None:
            return None
    try:
        row = content(last)
    except ValueError:
        return None
    if row.get("idempotency_key"):
        return None
    if lease:
        row["expires_at"] = lease_end(first, int(lease[1]))
    return whole(row)


def whole(said: Row) -> Row:
    """Every column of a row, in the order of COLUMNS."""
    row = {**DEFAULTS, **said}
    if len(row) == len(DEFAULTS):
        return row
    return {name: row[name] for name in DEFAULTS}
