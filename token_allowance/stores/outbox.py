"""From a store's stream into the ledger: each event taken over exactly once, by one drainer.

The watermark moves in the transaction that writes the rows, under a lock that lets one drainer work
at a time; so whoever dies in between has changed nothing (protocol 7).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast
from uuid import UUID

from django.db import DataError, IntegrityError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from token_allowance.exceptions import StoreUnavailable
from token_allowance.stores import events as log
from token_allowance.stores import ledger, merge, outbox_postgresql, outbox_sqlite
from token_allowance.stores.base import Row
from token_allowance.stores.connections import run, written_id
from token_allowance.stores.events import Event
from token_allowance.stores.rollups import Figures, Key, Sums

__all__ = ["Event", "Read", "Taken", "applied", "keep", "kept", "take_over", "watermark"]

BEGINNING = "0-0"
OUTBOX = "token_allowance_outbox"
LETTERS = "token_allowance_deadletter"
PENDING = "token_allowance_pendingsettlement"
HOSTILE = (DataError, IntegrityError, ValueError, OverflowError)  # the event's fault, not ours

Read = Callable[[str, int], list[Event]]  # the events after this id, at most so many


class Dialect(Protocol):
    """Ledger rows and roll-ups in one database's own language."""

    def lock(self, cursor: Any, prefix: str) -> str:
        """Make and lock the outbox row; its watermark."""

    def rows(self, cursor: Any, ids: Sequence[str]) -> dict[str, Row]:
        """The ledger rows with these ids; columns of JSON but ``flags`` as their text."""

    def owners(self, cursor: Any, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """The ids of the rows that have these (tenant, idempotency_key)."""

    def insert(self, connection: BaseDatabaseWrapper, cursor: Any, rows: Iterator[Row]) -> None: ...

    def replace(self, connection: BaseDatabaseWrapper, cursor: Any, rows: list[Row]) -> None: ...

    def add(
        self, connection: BaseDatabaseWrapper, cursor: Any, sums: Mapping[Key, Figures]
    ) -> None:
        """Add to the roll-ups."""


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
        """Write what the events say, or halve them until what cannot be written stands alone."""
        dead, rows = len(self.dead), self.rows
        self.cursor.execute("SAVEPOINT taken")
        try:
            self._write(events)
        except HOSTILE as error:
            self.cursor.execute("ROLLBACK TO SAVEPOINT taken")
            del self.dead[dead:]
            self.rows = rows
            if len(events) == 1:
                self.dead.append((events[0], f"{type(error).__name__}: {error}"))
            else:
                middle = len(events) // 2
                self.take(events[:middle])
                self.take(events[middle:])
        else:
            self.cursor.execute("RELEASE SAVEPOINT taken")

    def _write(self, events: Sequence[Event]) -> None:
        """Calls that are new first, each by itself; then all others, event by event."""
        groups: dict[str, list[Event]] = {}
        for event in events:
            groups.setdefault(event.reservation, []).append(event)
        before = self.dialect.rows(self.cursor, [id for id in groups if log.ID.fullmatch(id)])
        sums = Sums()
        left = set(before)

        def new() -> Iterator[Row]:
            for id, group in groups.items():
                row = None if id in before else merge.alone(group)
                if row is None:
                    left.add(id)
                else:
                    self.rows += 1
                    sums.move(None, row)
                    yield row

        self.dialect.insert(self.connection, self.cursor, new())
        if left:
            self._merge([event for event in events if event.reservation in left], before, sums)
        self.dialect.add(self.connection, self.cursor, sums.moved())

    def _merge(self, events: Sequence[Event], before: dict[str, Row], sums: Sums) -> None:
        """Follow the events in their order, and write each row once."""
        said = list(self._said(events))
        keys = {
            (row.get("tenant", ""), row["idempotency_key"])
            for _, row in said
            if row.get("idempotency_key")
        }
        owners = self.dialect.owners(self.cursor, list(keys)) if keys else {}
        now = before.copy()
        for event, content in said:
            row = now.get(event.reservation)
            new = merge.after(row, event, content)
            if new is None:
                if event.kind != log.NOTHING:
                    self.dead.append((event, "the ledger has no row of this reservation"))
            elif new is not row:
                now[event.reservation] = _with_own_key(owners, row, new)
        changes = [(before.get(id), row) for id, row in now.items() if row is not before.get(id)]
        for old, row in changes:
            sums.move(old, row)
        self.rows += len(changes)
        # A row that gives its key back comes before one that takes it.
        self.dialect.replace(self.connection, self.cursor, [row for old, row in changes if old])
        inserted = iter([row for old, row in changes if not old])
        self.dialect.insert(self.connection, self.cursor, inserted)

    def _said(self, events: Sequence[Event]) -> Iterator[tuple[Event, Row]]:
        for event in events:
            try:
                yield event, log.content(event)
            except ValueError as error:
                self.dead.append((event, str(error)))


def _with_own_key(owners: dict[tuple[str, str], str], old: Row | None, new: Row) -> Row:
    """A new row loses a key that another has; one that is released gives its key back."""
    if old is not None:
        if old["idempotency_key"] and not new["idempotency_key"]:
            owners.pop((old["tenant"], old["idempotency_key"]), None)
    elif new["idempotency_key"]:
        owner = owners.setdefault((new["tenant"], new["idempotency_key"]), new["id"])
        if owner != new["id"]:
            return merge.with_key_left_out(new)
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
    with ledger.transaction(connection), connection.cursor() as cursor:
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
                [written_id(connection, id), json.dumps(document), _now(connection)],
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
            cursor.execute(f"DELETE FROM {PENDING} WHERE id = %s", [written_id(connection, id)])

    run(alias, delete)


def _dialect(connection: BaseDatabaseWrapper) -> Dialect:
    if connection.vendor not in DIALECTS:
        raise StoreUnavailable(f"The ledger needs PostgreSQL or SQLite, not {connection.vendor}.")
    return DIALECTS[connection.vendor]


def _now(connection: BaseDatabaseWrapper) -> Any:
    return connection.ops.adapt_datetimefield_value(timezone.now())
