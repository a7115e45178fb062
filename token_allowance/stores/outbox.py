"""From a store's stream into the ledger: each event taken over exactly once, by one drainer.

The watermark moves in the transaction that writes the rows, under a lock that lets one drainer work
at a time; so whoever dies in between has changed nothing (protocol 7).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast
from uuid import UUID

from django.db import DataError, IntegrityError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from token_allowance.exceptions import StoreUnavailable
from token_allowance.stores import events as log
from token_allowance.stores import outbox_postgresql, outbox_sqlite, rollups
from token_allowance.stores.base import Row
from token_allowance.stores.connections import run
from token_allowance.stores.events import Event

__all__ = ["Event", "Read", "Taken", "applied", "keep", "kept", "take_over", "watermark"]

BEGINNING = "0-0"
OUTBOX = "token_allowance_outbox"
LETTERS = "token_allowance_deadletter"
PENDING = "token_allowance_pendingsettlement"
HOSTILE = (DataError, IntegrityError, ValueError, OverflowError)  # the event's fault, not ours

Read = Callable[[str, int], list[Event]]  # the events after this id, at most so many
Said = tuple[Event, Row]  # an event and its content


class Dialect(Protocol):
    """Ledger rows and roll-ups in one database's own language."""

    def transaction(self, connection: BaseDatabaseWrapper) -> Any: ...

    def lock(self, cursor: Any, prefix: str) -> str:
        """Make and lock the outbox row; its watermark."""

    def rows(self, cursor: Any, ids: Sequence[str]) -> dict[str, Row]:
        """The ledger rows with these ids; columns of JSON but ``flags`` as their text."""

    def owners(self, cursor: Any, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """The ids of the rows that have these (tenant, idempotency_key)."""

    def write(
        self,
        connection: BaseDatabaseWrapper,
        cursor: Any,
        new: list[Row],
        old: list[Row],
        sums: dict[rollups.Key, list[Any]],
    ) -> None:
        """Insert rows, then replace others, and add to the roll-ups."""


DIALECTS = {
    "postgresql": cast(Dialect, outbox_postgresql),
    "sqlite": cast(Dialect, outbox_sqlite),
}


@dataclass(frozen=True, slots=True)
class Taken:
    """What one batch has done: events read, ledger rows written, events set aside."""

    events: int
    rows: int
    dead: int
    watermark: str
    last: str  # the last event read, or where reading began


@dataclass(slots=True)
class Batch:
    """One batch under way."""

    connection: BaseDatabaseWrapper
    cursor: Any
    dialect: Dialect
    dead: list[tuple[Event, str]] = field(default_factory=list)
    rows: int = 0

    def take(self, events: Sequence[Event]) -> None:
        said: list[Said] = []
        for event in events:
            try:
                said.append((event, log.content(event)))
            except ValueError as error:
                self.dead.append((event, str(error)))
        if said:
            self._try(said)

    def _try(self, said: list[Said]) -> None:
        """Write what was said, or halve it until what cannot be written stands alone."""
        dead = len(self.dead)
        self.cursor.execute("SAVEPOINT taken")
        try:
            written = self._write(said)
            self.cursor.execute("RELEASE SAVEPOINT taken")
        except HOSTILE as error:
            self.cursor.execute("ROLLBACK TO SAVEPOINT taken")
            del self.dead[dead:]
            if len(said) == 1:
                self.dead.append((said[0][0], f"{type(error).__name__}: {error}"))
                return
            middle = len(said) // 2
            self._try(said[:middle])
            self._try(said[middle:])
        else:
            self.rows += written

    def _write(self, said: list[Said]) -> int:
        """Merge the events in their order and write each row once; how many there were."""
        before = self.dialect.rows(self.cursor, list({event.reservation for event, _ in said}))
        wanted = {
            (row["tenant"], row["idempotency_key"])
            for _, row in said
            if row.get("idempotency_key") and row.get("tenant") is not None
        }
        owners = self.dialect.owners(self.cursor, list(wanted)) if wanted else {}
        now: dict[str, Row] = before.copy()
        for event, content in said:
            id = event.reservation
            row = now.get(id)
            new = log.after(row, event, content)
            if new is None:
                if event.kind != log.NOTHING:
                    self.dead.append((event, "the ledger has no row of this reservation"))
            elif new is not row:
                if row is None or row["idempotency_key"] != new["idempotency_key"]:
                    new = _with_own_key(owners, row, new)
                now[id] = new
        changes = [(before.get(id), row) for id, row in now.items() if row is not before.get(id)]
        if changes:
            inserted = [row for old, row in changes if old is None]
            replaced = [row for old, row in changes if old is not None]
            sums = rollups.moved(changes)
            self.dialect.write(self.connection, self.cursor, inserted, replaced, sums)
        return len(changes)


def _with_own_key(owners: dict[tuple[str, str], str], old: Row | None, new: Row) -> Row:
    """A new row loses a key that another has; one that is released gives its key back."""
    if old is not None:
        owners.pop((old["tenant"], old["idempotency_key"]), None)
    elif new["idempotency_key"]:
        owner = owners.setdefault((new["tenant"], new["idempotency_key"]), new["id"])
        if owner != new["id"]:
            return log.with_key_left_out(new)
    return new


def take_over(
    alias: str, prefix: str, read: Read, *, most: int = 5000, after: str | None = None
) -> Taken:
    """Take the next events into the ledger of this database, at most so many; one transaction.

    ``after`` reads from an earlier event on, for a store that was restored: what has been taken
    over before changes nothing, and the watermark never goes back. Whatever ``read`` raises
    is raised, and nothing has changed; StoreUnavailable if the database cannot be asked.
    """
    return run(alias, lambda connection: _take_over(connection, prefix, read, most, after))


def _take_over(
    connection: BaseDatabaseWrapper, prefix: str, read: Read, most: int, after: str | None
) -> Taken:
    dialect = _dialect(connection)
    with dialect.transaction(connection), connection.cursor() as cursor:
        mark = dialect.lock(cursor, prefix)
        since = mark if after is None else after
        events = read(since, most)
        if not events:
            return Taken(0, 0, 0, mark, since)
        batch = Batch(connection, cursor, dialect)
        batch.take(events)
        _set_aside(cursor, connection, prefix, batch.dead)
        last = events[-1].id
        mark = max(mark, last, key=log.place)
        cursor.execute(
            f"UPDATE {OUTBOX} SET watermark = %s, drained_at = %s WHERE prefix = %s",
            [mark, _now(connection), prefix],
        )
        return Taken(len(events), batch.rows, len(batch.dead), mark, last)


def _set_aside(
    cursor: Any, connection: BaseDatabaseWrapper, prefix: str, dead: list[tuple[Event, str]]
) -> None:
    if not dead:
        return
    now = _now(connection)
    cursor.executemany(
        f"INSERT INTO {LETTERS} (prefix, event_id, payload, error, created_at) "
        "VALUES (%s, %s, %s, %s, %s) ON CONFLICT (prefix, event_id) DO NOTHING",
        [
            (prefix, event.id, event.document, _error(event, text), now)
            for event, text in sorted(dead, key=lambda letter: log.place(letter[0].id))
        ],
    )


def _error(event: Event, text: str) -> str:
    """Which event it was, and why; in letters that any database can write."""
    words = f"{event.kind} {event.reservation}: {text}"[:1000]
    return words.encode("ascii", "backslashreplace").decode().replace("\0", "\\x00")


def watermark(alias: str, prefix: str) -> str:
    """The id of the last event that is in the ledger; "0-0" if none is."""

    def ask(connection: BaseDatabaseWrapper) -> str:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT watermark FROM {OUTBOX} WHERE prefix = %s", [prefix])
            found = cursor.fetchone()
        return str(found[0]) if found else BEGINNING

    return run(alias, ask)


def keep(alias: str, id: UUID, document: Row) -> None:
    """Write down how a call ended, for a store that cannot be told. Repeating changes nothing."""

    def insert(connection: BaseDatabaseWrapper) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {PENDING} (id, document, created_at) VALUES (%s, %s, %s) "
                "ON CONFLICT (id) DO NOTHING",
                [_id(connection, id), json.dumps(document), _now(connection)],
            )

    run(alias, insert)


def kept(alias: str, most: int) -> list[tuple[UUID, Row]]:
    """What was written down and not yet applied, the oldest calls first."""

    def ask(connection: BaseDatabaseWrapper) -> list[tuple[UUID, Row]]:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT id, document FROM {PENDING} ORDER BY id LIMIT %s", [most])
            found = cursor.fetchall()
        return [(UUID(str(id)), json.loads(d) if isinstance(d, str) else d) for id, d in found]

    return run(alias, ask)


def applied(alias: str, id: UUID) -> None:
    """The store knows now how this call ended."""

    def delete(connection: BaseDatabaseWrapper) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {PENDING} WHERE id = %s", [_id(connection, id)])

    run(alias, delete)


def _dialect(connection: BaseDatabaseWrapper) -> Dialect:
    if connection.vendor not in DIALECTS:
        raise StoreUnavailable(f"The ledger needs PostgreSQL or SQLite, not {connection.vendor}.")
    return DIALECTS[connection.vendor]


def _id(connection: BaseDatabaseWrapper, id: UUID) -> Any:
    return id if connection.features.has_native_uuid_field else id.hex


def _now(connection: BaseDatabaseWrapper) -> Any:
    return connection.ops.adapt_datetimefield_value(timezone.now())
