"""Events of a store that is not the ledger's own database, and what each makes of a ledger row.

Values only. Everything here is monotone: an event that has been taken over before changes nothing,
and in whatever pieces a stream is read, the same rows come of it (protocol 7).
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from token_allowance.limits import IDENTIFIER_LENGTH
from token_allowance.stores.base import Row, corrects

RESERVED, EXTENDED, SETTLED, RELEASED, EXPIRED, CONFLICT = "r", "x", "s", "v", "e", "c"
NOTHING = "m"  # keeps the ids of a stream going on; there is nothing in it
KINDS = (RESERVED, EXTENDED, SETTLED, RELEASED, EXPIRED, CONFLICT, NOTHING)
STATES = {RESERVED: "reserved", EXTENDED: "reserved", SETTLED: "settled", RELEASED: "released"}

MAX_COUNT = 2**63 - 1
MAX_LEASE = 10**12
ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
UNWRITABLE = re.compile(r"\\u(0000|[dD][89a-fA-F])")  # what may stand for a NUL or half a pair
TEXTS = {
    **dict.fromkeys(("idempotency_key", "trace_id", "tenant", "user", "session", "feature"),
                    IDENTIFIER_LENGTH),
    **dict.fromkeys(("model", "requested_model", "provider_request_id", "deferred_id"),
                    IDENTIFIER_LENGTH),
    "run_path": 100_000,
    "provider": 64,
}  # fmt: skip
COUNTS = (
    "reserved_tokens", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens",
    "reasoning_tokens",
)  # fmt: skip
MICROS = ("reserved_micros", "cost_micros")
DOCUMENTS = ("flags", "holds", "usage", "raw_usage", "price")
MOMENTS = ("created_at", "settled_at", "expires_at")
FINAL = (
    "cost_micros", "cost_exact", "input_tokens", "output_tokens", "cache_read_tokens",
    "cache_write_tokens", "reasoning_tokens", "usage", "raw_usage", "price", "provider_request_id",
    "settled_at",
)  # fmt: skip
DEFAULTS: Row = {
    "id": "",
    **dict.fromkeys(TEXTS, ""),
    "state": "reserved",
    **dict.fromkeys(COUNTS, 0),
    **dict.fromkeys((*MICROS, "cost_exact", "usage", "raw_usage", "price"), None),
    "flags": [],
    "holds": [],
    **dict.fromkeys(MOMENTS, None),
}
COLUMNS = tuple(DEFAULTS)


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of a store's stream. The milliseconds of its id are the store's own clock."""

    id: str  # "1764477600000-0"
    kind: str
    reservation: str  # a UUID, 36 characters
    document: bytes  # JSON


def place(id: str) -> tuple[int, int]:
    """An event id as a value that sorts."""
    milliseconds, _, number = id.partition("-")
    return int(milliseconds), int(number or 0)


def content(event: Event) -> Row:
    """What an event says, checked. ValueError if no row could hold it (protocol 8)."""
    if event.kind not in STATES:
        if event.kind not in KINDS:
            raise ValueError(f"kind {event.kind!r} is not known")
        return _change(event)
    if not ID.fullmatch(event.reservation):
        raise ValueError("the reservation's id is no UUID")
    row = _read(event)
    for name, value in row.items():
        check = CHECKS.get(name)
        if check is not None and not check(value):
            raise ValueError(f"{name} cannot be {value!r}")
    row["id"] = event.reservation
    row["state"] = STATES[event.kind]
    if event.kind in (RESERVED, EXTENDED):
        row["expires_at"] = _lease(event, row)
    elif event.kind == RELEASED:
        row["idempotency_key"] = ""
    if event.kind == EXTENDED:  # says only what it changes
        return row
    row.setdefault("expires_at", row.get("created_at"))
    if not row.get("created_at") or not row["expires_at"]:
        raise ValueError("the row does not say when the call began")
    if event.kind in (SETTLED, RELEASED) and not row.get("settled_at"):
        raise ValueError("the row does not say when the call ended")
    return row


def after(row: Row | None, event: Event, said: Row) -> Row | None:
    """The ledger row after this event, the same object if it changes nothing.

    ``said`` is the event's content. None: there is no row and none can be made of this.
    """
    if event.kind in STATES:
        if row is None and event.kind == EXTENDED:
            return None
        if row is None:
            return {**DEFAULTS, **{name: said[name] for name in said if name in DEFAULTS}}
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
    flags = row["flags"]
    if new := [flag for flag in said.get("flags", ()) if flag not in flags]:
        flags = sorted({*flags, *new})
    changes: Row = {"flags": flags}
    if _moment(said["expires_at"]) > _moment(row["expires_at"]):
        changes["expires_at"] = said["expires_at"]
    amounts = ("reserved_micros", "reserved_tokens")
    less = [(said.get(name) or 0) - (row[name] or 0) for name in amounts]
    if min(less) >= 0:
        if max(less) > 0:
            changes |= {name: said.get(name, DEFAULTS[name]) for name in (*amounts, "holds")}
        if said.get("deferred_id"):
            changes["deferred_id"] = said["deferred_id"]
    return row if all(row[name] == value for name, value in changes.items()) else row | changes


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


def _change(event: Event) -> Row:
    if event.kind == NOTHING:
        return {}
    if not ID.fullmatch(event.reservation):
        raise ValueError("the reservation's id is no UUID")
    said = _read(event)
    if event.kind == EXPIRED and (
        not isinstance(said.get("charge"), bool)
        or (said["charge"] and not _is_moment(said.get("at")))
    ):
        raise ValueError("it does not say whether, and when, the call was charged")
    return said


def _not_a_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


_decoder = json.JSONDecoder(parse_constant=_not_a_number)


def _read(event: Event) -> Row:
    try:
        text = event.document.decode()
        document = _decoder.decode(text)
    except RecursionError:
        raise ValueError("the document is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("the document is no object")
    if UNWRITABLE.search(text):
        for string in _strings(document):
            string.encode()  # a UnicodeEncodeError is a ValueError
            if "\0" in string:
                raise ValueError("a text has a NUL in it")
    return document


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from _strings(list(pair))
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)


def _lease(event: Event, row: Row) -> str | None:
    """When the lease ends, by the store's clock."""
    lease = row.get("lease_ms")
    if lease is None:
        end: str | None = row.get("expires_at")
        return end
    end_seconds = (place(event.id)[0] + int(lease)) / 1000
    return dt.datetime.fromtimestamp(end_seconds, dt.UTC).isoformat()


def _moment(text: str) -> dt.datetime:
    moment = dt.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def _is_moment(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return bool(_moment(value))
    except ValueError:
        return False


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _is_amount(value: object) -> bool:
    return value is None or _is_count(value)


def _is_text(most: int) -> Callable[[object], bool]:
    return lambda value: type(value) is str and len(value) <= most


def _is_cost(value: object) -> bool:
    if value is None:
        return True
    try:
        return type(value) is str and 0 <= Decimal(value) <= MAX_COUNT
    except InvalidOperation:
        return False


def _is_object(value: object) -> bool:
    return value is None or isinstance(value, dict)


CHECKS: dict[str, Callable[[object], bool]] = {
    **{name: _is_text(most) for name, most in TEXTS.items()},
    **dict.fromkeys(COUNTS, _is_count),
    **dict.fromkeys(MICROS, _is_amount),
    **dict.fromkeys(MOMENTS, lambda value: value is None or _is_moment(value)),
    "cost_exact": _is_cost,
    "flags": lambda value: isinstance(value, list) and all(type(flag) is str for flag in value),
    "holds": lambda value: isinstance(value, list),
    **dict.fromkeys(("usage", "raw_usage", "price"), _is_object),
    "lease_ms": lambda value: type(value) is int and 0 <= value <= MAX_LEASE,
}
