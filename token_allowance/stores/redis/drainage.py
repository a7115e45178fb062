"""From the stream into the ledger: what Redis has decided, row by row, exactly once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from token_allowance.exceptions import StoreUnavailable
from token_allowance.limits import Amounts
from token_allowance.stores import outbox
from token_allowance.stores.base import Settlement
from token_allowance.stores.redis import ends

if TYPE_CHECKING:
    from token_allowance.stores.redis.store import RedisStore

logger = logging.getLogger("token_allowance")
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


def keep(alias: str, settlement: Settlement) -> bool:
    """Write down how a call ended, for a store that cannot be told; False if that fails too."""
    actual = settlement.actual
    document: dict[str, Any] = {
        "actual": [actual.cost_micros, actual.tokens, actual.calls],
        "row": settlement.row,
    }
    try:
        outbox.keep(alias, settlement.id, document)
    except StoreUnavailable:
        return False
    logger.warning("token_allowance: the store is down; a settlement waits in the database")
    return True


def apply_kept(store: RedisStore, most: int = 1000) -> int:
    """Settle what was written down while Redis was down; how many there were."""
    kept = outbox.kept(store.alias, most)
    for id, document in kept:
        actual = Amounts(*document["actual"])
        ends.settle(store, Settlement(id=id, actual=actual, row=document["row"]))
        outbox.applied(store.alias, id)
    return len(kept)
