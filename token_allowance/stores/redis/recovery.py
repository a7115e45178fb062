"""A server that is empty, restarted or promoted is begun anew from the ledger (protocol C)."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from token_allowance.limits import microseconds
from token_allowance.stores import events, ledger, outbox, version
from token_allowance.stores.base import Row, Settlement
from token_allowance.stores.connections import run
from token_allowance.stores.redis import drainage, records
from token_allowance.stores.redis import holds as held
from token_allowance.stores.redis.checking import facts
from token_allowance.stores.redis.gate import Command, closed
from token_allowance.stores.redis.holds import Holds
from token_allowance.stores.redis.names import Names

if TYPE_CHECKING:
    from token_allowance.stores.redis.store import RedisStore

logger = logging.getLogger("token_allowance")
PAUSE_SECONDS = 0.02
CHUNK = 500


def recover(store: RedisStore, *, whatever: bool = False) -> None:
    """Begin another epoch, with what the ledger says; one caller does, the others find it done.

    What the server has acknowledged and lost is not in the ledger either: processes that remember
    it tell it again, and the rest shows as reservations that expire.
    """
    names = store.asking.names
    with closed(store.wire, names) as gate:
        if gate is None:
            time.sleep(PAUSE_SECONDS)
            return
        server = facts(store.wire)["run_id"]
        epoch, _, known = (store.wire.execute("GET", names.marker) or b"").decode().partition(":")
        if known == server and not whatever:
            adopt(store, int(epoch))
            return
        drainage.drain(store, after="0-0")
        now = dt.datetime.now(dt.UTC)
        number = run(store.alias, lambda c: records.begin_epoch(c, store.prefix, now))
        mark = outbox.watermark(store.alias, store.prefix)
        names = Names(store.prefix, number)
        logger.warning("token_allowance: budgets in Redis begin epoch %d from the ledger", number)
        gate.write(_continued(store, names, mark))
        rows = run(store.alias, records.open_rows)
        gate.write([c for row in rows for c in restored(names, row, held.of_row(row))])
        number_of_policy = run(store.alias, version.read)
        gate.write([
            ("DEL", names.lease),
            ("SET", names.version, number_of_policy),
            ("SET", f"{names.of_epoch}opened", microseconds(now)),
            ("SET", names.marker, f"{number}:{server}"),
        ])  # fmt: skip
        adopt(store, number)


def adopt(store: RedisStore, epoch: int) -> None:
    """Believe in this epoch."""
    opened = store.wire.execute("GET", f"{Names(store.prefix, epoch).of_epoch}opened")
    store.asking.begin(epoch, int(opened or microseconds(dt.datetime.now(dt.UTC))))


def replay(store: RedisStore, settlements: Sequence[Settlement]) -> None:
    """Tell the server again what this process has told it lately; it may have lost it."""

    def again() -> None:
        lost = 0
        for start in range(0, len(settlements), CHUNK):
            some = settlements[start : start + CHUNK]
            try:
                ids = [settlement.id for settlement in some]
                states = run(store.alias, partial(records.states, ids=ids))
                for settlement in some:
                    if states.get(settlement.id) not in ("settled", "released"):
                        store.settle(settlement)
            except Exception as error:
                lost += len(some)
                logger.warning("token_allowance: settlements could not be told again: %s", error)
        if lost:
            logger.error("token_allowance: up to %d settlements may be lost; leases end them", lost)

    threading.Thread(target=again, name="token-allowance-replay", daemon=True).start()


def _continued(store: RedisStore, names: Names, mark: str) -> list[Command]:
    """Let the stream's ids go on behind the ledger's watermark, also if a clock was set back."""
    last = store.wire.execute("XREVRANGE", names.events, "+", "-", "COUNT", 1)
    milliseconds, number = (int(part) for part in mark.split("-"))
    if last and tuple(int(p) for p in last[0][0].split(b"-")) >= (milliseconds, number):
        return []
    fields = ("i", "-", "s", events.NOTHING, "d", "{}")
    return [("XADD", names.events, f"{milliseconds}-{number + 1}", *fields)]


def restored(names: Names, row: Row, holds: Holds) -> list[Command]:
    """An open reservation, from its ledger row: what it holds, its lease, its idempotency key."""
    id = str(UUID(str(row["id"])))
    found: list[Command] = [
        ("SET", names.reservation(id), f"{held.OPEN}|{holds.text}"),
        ("ZADD", names.leases, microseconds(ledger.aware(row["expires_at"])) // 1000, id),
    ]
    if row["idempotency_key"]:
        found.append(("SET", names.idempotent(row["tenant"], row["idempotency_key"]), id))
    return found
