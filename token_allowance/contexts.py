"""What the provider keeps and reads again: remembered from the answers that carried it (C45).

A request that continues an answer, or names a conversation, a stored prompt, a file or cached
content, is charged for more than it sends. What the last call with the same id used, input and
output, is what the next one is expected to read. An answer that this process does not remember
is looked up in the ledger; for what nobody knows, a floor is reserved and the row flagged.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from django.db import DEFAULT_DB_ALIAS, DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

from token_allowance import conf
from token_allowance.estimate.references import Kind, Reference
from token_allowance.exceptions import StoreUnavailable
from token_allowance.stores.connections import run
from token_allowance.stores.ledger import NOT_EMPTY

REMEMBERED: Final = 10_000
CONTINUED_APIS: Final = frozenset(("responses", "interactions"))
SETTLED: Final = (
    "SELECT input_tokens + output_tokens FROM token_allowance_reservation "
    f"WHERE provider_request_id = %s AND {NOT_EMPTY.format('provider_request_id')} "
    "AND state = 'settled' "
    "ORDER BY id DESC LIMIT 1"
)


@dataclass(frozen=True, slots=True)
class Context:
    """Tokens of input that are not in the request; ``unknown`` if a part of them is a floor."""

    tokens: int = 0
    unknown: bool = False


NO_CONTEXT: Final = Context()


class _Memory:
    """The calls that last carried each id, and what they used; the oldest is forgotten first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: OrderedDict[Reference, tuple[str, int]] = OrderedDict()

    def get(self, reference: Reference) -> tuple[str, int] | None:
        with self._lock:
            found = self._used.get(reference)
            if found is not None:
                self._used.move_to_end(reference)
            return found

    def set(self, reference: Reference, answer: str, tokens: int) -> None:
        with self._lock:
            self._used[reference] = answer, tokens
            self._used.move_to_end(reference)
            if len(self._used) > REMEMBERED:
                self._used.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._used.clear()


memory = _Memory()


def context(references: Iterable[Reference]) -> Context:
    """What a request with these references is expected to read besides what it sends.

    What the same call carried is counted once, however many of its ids are named.
    """
    used: dict[str, int] = {}
    unknown = False
    for reference in references:
        found = memory.get(reference) or _settled(reference)
        if found is None:
            unknown = True
        else:
            answer, tokens = found
            used[answer] = max(tokens, used.get(answer, 0))
    floor = conf.current().context_floor_tokens if unknown else 0
    return Context(sum(used.values()) + floor, unknown)


def remember(references: Iterable[Reference], api: str, answer: str, tokens: int) -> None:
    """Note what a call used, input and output, for the calls that go on from it."""
    for reference in references:
        if reference.kind is not Kind.ANSWER:
            memory.set(reference, answer, tokens)
    if answer and api in CONTINUED_APIS:
        memory.set(Reference(Kind.ANSWER, answer), answer, tokens)


def _settled(reference: Reference) -> tuple[str, int] | None:
    """By the ledger, which knows the answers that other processes received."""
    if reference.kind is not Kind.ANSWER:
        return None
    alias = getattr(conf.store(), "alias", DEFAULT_DB_ALIAS)
    try:
        tokens = run(alias, lambda connection: _tokens(connection, reference.id))
    except (StoreUnavailable, DatabaseError):
        return None
    if tokens is None:
        return None
    memory.set(reference, reference.id, tokens)
    return reference.id, tokens


def _tokens(connection: BaseDatabaseWrapper, answer: str) -> int | None:
    with connection.cursor() as cursor:
        cursor.execute(SETTLED, [answer])
        found = cursor.fetchone()
    return None if found is None else int(found[0])
