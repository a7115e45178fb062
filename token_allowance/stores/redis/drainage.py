"""From the stream into the ledger: what Redis has decided, row by row, exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from token_allowance.stores import outbox

if TYPE_CHECKING:
    from token_allowance.stores.redis.store import RedisStore

BATCH = 5000
FIELDS = [b"i", b"s", b"d"]  # of an event, as the scripts write it
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
    """The events after this id, at most so many; whatever somebody else wrote there is one, too."""
    name = store.asking.names.events
    answer = store.wire.execute("XRANGE", name, f"({since}", "+", "COUNT", most)
    found = []
    for id, pairs in answer:
        if pairs[::2] == FIELDS:
            _, of, _, kind, _, document = pairs
        else:
            fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
            of, kind, document = (fields.get(name, b"") for name in FIELDS)
        of, kind = of.decode(errors="replace"), kind.decode(errors="replace")
        found.append(outbox.Event(id.decode(), kind, of, document))
    return found


def behind_seconds(store: RedisStore) -> float:
    """How long the oldest event has waited for the ledger, by the store's clock; 0 if none does."""
    mark = outbox.watermark(store.alias, store.prefix)
    oldest = store.wire.execute("XRANGE", store.asking.names.events, f"({mark}", "+", "COUNT", 1)
    if not oldest:
        return 0.0
    seconds, micros = (int(part) for part in store.wire.execute("TIME"))
    written = int(oldest[0][0].partition(b"-")[0])
    return max(0.0, seconds + micros / 1_000_000 - written / 1000)


def trim(store: RedisStore) -> None:
    """Drop the events that have been in the ledger for a while; at once if there are very many,
    because all that the stream holds counts against EVENTS_MOST."""
    events_name = store.asking.names.events
    mark = outbox.watermark(store.alias, store.prefix)
    oldest = int(mark.partition("-")[0]) - KEPT_MILLISECONDS
    if store.wire.execute("XLEN", events_name) > store.events_most // 2:
        store.wire.execute("XTRIM", events_name, "MINID", mark)
    elif oldest > 0:
        store.wire.execute("XTRIM", events_name, "MINID", "~", oldest)


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
