"""Settlements that Redis could not be told: kept in the database, and applied later, once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from token_allowance.exceptions import StoreUnavailable
from token_allowance.limits import Amounts
from token_allowance.stores import outbox
from token_allowance.stores.base import Settlement
from token_allowance.stores.connections import run
from token_allowance.stores.redis import drainage, ends, records

if TYPE_CHECKING:
    from token_allowance.stores.redis.store import RedisStore

logger = logging.getLogger("token_allowance")
MOST = 1000
ENDED = {  # what the ledger says of a call once it knows of this end
    "settled": ("settled", "released"),
    "released": ("settled", "released", "expired"),
}


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


def apply(store: RedisStore) -> int:
    """Settle what was written down while Redis was down; how many there were.

    Each is kept until the ledger has it: what Redis has acknowledged it may still lose.
    """
    kept = outbox.kept(store.alias, MOST)
    for id, document in kept:
        actual = Amounts(*document["actual"])
        ends.settle(store, Settlement(id=id, actual=actual, row=document["row"]))
    if kept:
        drainage.drain(store)
        states = run(store.alias, lambda c: records.states(c, [id for id, _ in kept]))
        for id, document in kept:
            if states.get(id) in ENDED[document["row"]["state"]]:
                outbox.applied(store.alias, id)
    return len(kept)
