"""Events of a store that is not the ledger's own database: what they are and what they may say."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from token_allowance.limits import IDENTIFIER_LENGTH
from token_allowance.stores.base import Row

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
NUMBERS = frozenset((*COUNTS, *MICROS))
DOCUMENTS = ("flags", "holds", "usage", "raw_usage", "price")
MOMENTS = ("created_at", "settled_at", "expires_at")
EMPTY = frozenset((*MICROS, *MOMENTS, "cost_exact", "usage", "raw_usage", "price"))
#: The columns that the end of a call sets, beside its state and its flags.
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


class Event(NamedTuple):
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
    row = _read(event)
    _check(row)
    row["id"] = event.reservation
    row["state"] = STATES[event.kind]
    if event.kind in (RESERVED, EXTENDED):
        if "lease_ms" in row:
            row["expires_at"] = lease_end(event, row["lease_ms"])
        if event.kind == EXTENDED:  # says only what it changes
            return row
    elif not row.get("settled_at"):
        raise ValueError("the row does not say when the call ended")
    elif event.kind == RELEASED:
        row["idempotency_key"] = ""
    if not row.get("created_at"):
        raise ValueError("the row does not say when the call began")
    if not row.get("expires_at"):
        row["expires_at"] = row["created_at"]
    return row


def _check(row: Row) -> None:
    for name, value in row.items():
        kind = type(value)
        if kind is str:
            most = TEXTS.get(name, 0)
            if most:
                if len(value) <= most:
                    continue
            elif name in MOMENTS:
                dt.datetime.fromisoformat(value)
                continue
        elif kind is int and name in NUMBERS:
            if 0 <= value <= MAX_COUNT:
                continue
        elif value is None and name in EMPTY:
            continue
        check = CHECKS.get(name)
        if check is not None and not check(value):
            raise ValueError(f"{name} cannot be {value!r}")


def _change(event: Event) -> Row:
    if event.kind == NOTHING:
        return {}
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
    if not ID.fullmatch(event.reservation):
        raise ValueError("the reservation's id is no UUID")
    try:
        text = event.document.decode()
        document = _decoder.decode(text)
    except RecursionError:
        raise ValueError("the document is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("the document is no object")
    if "\\u" in text and UNWRITABLE.search(text):
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


def lease_end(event: Event, lease_milliseconds: int) -> str:
    """When a lease ends, by the store's clock."""
    end_seconds = (place(event.id)[0] + lease_milliseconds) / 1000
    return dt.datetime.fromtimestamp(end_seconds, dt.UTC).isoformat()


def moment(text: str) -> dt.datetime:
    read = dt.datetime.fromisoformat(text)
    return read if read.tzinfo else read.replace(tzinfo=dt.UTC)


def _is_moment(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(moment(value))
    except ValueError:
        return False


def _is_cost(value: object) -> bool:
    try:
        return isinstance(value, str) and 0 <= Decimal(value) <= MAX_COUNT
    except InvalidOperation:
        return False


def _is_flags(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(flag, str) for flag in value)


def _never(value: object) -> bool:
    return False


# What is neither a short enough text, nor a count, nor empty where that is allowed.
CHECKS: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys((*TEXTS, *NUMBERS, *MOMENTS), _never),
    "cost_exact": _is_cost,
    "flags": _is_flags,
    "holds": lambda value: isinstance(value, list),
    **dict.fromkeys(("usage", "raw_usage", "price"), lambda value: isinstance(value, dict)),
    "lease_ms": lambda value: type(value) is int and 0 <= value < MAX_LEASE,
}
