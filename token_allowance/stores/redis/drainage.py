"""From the stream into the ledger: what Redis has decided, row by row, exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from token_allowance.stores import outbox

if TYPE_CHECKING:
    from token_allowance.stores.redis.store import RedisStore

BATCH = 5000
NOTHING_HAPPENED = b"m"  # only there so that the ids of the stream go on where the ledger is
KEPT_MILLISECONDS = 600_000  # behind the ledger: what a server that lost its tail is replayed from


def drain(store: RedisStore, *, after: str | None = None) -> int:
    """Take over every event there is; how many there were. ``after``: those taken before, too."""
    found, last = 0, after

    def read(since: str, most: int) -> list[outbox.Event]:
        nonlocal last
        taken = events(store, since, most)
        last = taken[-1].id if taken and after is not None else last
        return taken

    while True:
        taken = outbox.take_over(store.alias, store.prefix, read, most=BATCH, after=last)
        found += taken.events
        if taken.events < BATCH:
            return found


def events(store: RedisStore, since: str, most: int) -> list[outbox.Event]:
    """The events after this id, at most so many."""
    answer = store.wire.execute(
        "XRANGE", store.asking.names.events, f"({since}", "+", "COUNT", most
    )
    return [
        outbox.Event(id.decode(), f[3].decode(), f[1].decode(), f[5])
        for id, f in answer
        if f[3] != NOTHING_HAPPENED
    ]


def trim(store: RedisStore) -> None:
    """Drop the events that have been in the ledger for a while."""
    mark = outbox.watermark(store.alias, store.prefix)
    oldest = int(mark.partition("-")[0]) - KEPT_MILLISECONDS
    if oldest > 0:
        store.wire.execute("XTRIM", store.asking.names.events, "MINID", "~", oldest)


def sweep(store: RedisStore) -> int:
    """Drop what earlier epochs have left; how many keys there were."""
    names, found = store.asking.names, 0
    cursor: Any = b"0"
    tag = names.marker.removesuffix(":m").encode()
    while True:
        cursor, keys = store.wire.execute("SCAN", cursor, "MATCH", tag + b"[0-9]*", "COUNT", 1000)
        old = [key for key in keys if not key.startswith(names.of_epoch.encode())]
        if old:
            found += store.wire.execute("UNLINK", *old)
        if cursor == b"0":
            return found
