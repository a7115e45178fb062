"""How reservations end in Redis: settled, released or expired, seen before or not (protocol 11)."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

from token_allowance.limits import NOTHING
from token_allowance.stores import ledger
from token_allowance.stores.base import Outcome, Request, Row, Settlement
from token_allowance.stores.connections import run, written_id
from token_allowance.stores.redis import drainage
from token_allowance.stores.redis import holds as held
from token_allowance.stores.redis.asking import Question
from token_allowance.stores.redis.holds import Holds
from token_allowance.stores.redis.names import Names
from token_allowance.stores.redis.questions import document
from token_allowance.stores.redis.scripts import script

if TYPE_CHECKING:
    from token_allowance.stores.redis.store import RedisStore

REMEMBERED_MILLISECONDS = 3_600_000  # how a reservation ended; later the ledger is asked
EXPIRED_MILLISECONDS = 7 * 86_400_000
NORMAL, UNSEEN, CHARGED = "", "U", "X"


def settle(store: RedisStore, settlement: Settlement) -> Outcome:
    """Replace the hold by what was used. StoreUnavailable if Redis, or the ledger behind it, is."""
    id, mode, row = settlement.id, NORMAL, settlement.row
    holds = store.forget(id) or store.holds_of(id) or _listed(store, row)
    while True:
        answer = store.asking.ask(question, settlement, row, holds, mode)
        word = answer[0]
        if word == "holds":
            holds = held.read(answer[1][2:])
        elif word == "unknown":
            found = _of_ledger(store, row)
            if found is None:
                holds = _listed(store, row)  # as the epoch has them that the answer came from
                mode, row = UNSEEN, row | {"flags": sorted({*row["flags"], "late"})}
            elif found["state"] in ("settled", "released"):
                return _again(store, found, row)
            else:
                holds = _listed(store, found)
                mode = CHARGED if found["settled_at"] else UNSEEN
                if found["state"] == "reserved":
                    _restore(store, found, holds)
                    mode = NORMAL
        else:
            return Outcome(row["state"] if word == "settled" else word)


def expire(store: RedisStore, id: str, now: dt.datetime, *, charge: bool) -> bool:
    """End one reservation whose lease has run out; False if it was alive or had ended."""
    text = store.wire.execute("GET", store.asking.names.reservation(id))
    event = json.dumps({"charge": charge, "at": now.isoformat()})
    while True:
        holds = held.read(text[2:]) if text and text[:1] == b"R" else held.of(())
        answer = store.asking.ask(_expire, id, holds, event, charge)
        if answer[0] != "holds":
            return bool(answer[0] == "expired")
        text = answer[1]


def unheard(request: Request) -> Settlement:
    """The release of a reservation whose answer was lost (protocol 9)."""
    moment = request.now.isoformat()
    row = request.row | {"state": "released", "settled_at": moment}
    return Settlement(id=request.id, actual=NOTHING, row=row)


def question(names: Names, settlement: Settlement, row: Row, holds: Holds, mode: str) -> Question:
    actual, reservation = settlement.actual, names.reservation(settlement.id)
    idem = reservation
    if row["idempotency_key"]:
        idem = names.idempotent(row["tenant"], row["idempotency_key"])
    keys = [names.marker, names.gate, reservation, *holds.counters(names)]
    keys += [names.leases, names.events, idem]
    state = held.RELEASED
    if row["state"] == "released":
        row = row | {"idempotency_key": ""}
    else:
        state = f"S|{row['cost_micros']}|{row['input_tokens']}|{row['output_tokens']}"
    arguments: list[Any] = [names.epoch, holds.text, state, mode, document(row, holds), holds.units]
    arguments += [actual.cost_micros or 0, actual.tokens, actual.calls, REMEMBERED_MILLISECONDS]
    arguments += [*holds.amounts(), *holds.slices()]
    if mode == UNSEEN:
        for key, _, _, since in holds.entries:
            keys.append(names.opened(key))
            arguments += [key, since]
    return script("settle"), keys, arguments


def _expire(names: Names, id: str, holds: Holds, event: str, charge: bool) -> Question:
    keys = [names.marker, names.gate, names.reservation(id), *holds.counters(names)]
    state = held.CHARGED if charge else held.EXPIRED
    arguments = [names.epoch, f"R|{holds.text}", state, event, EXPIRED_MILLISECONDS]
    arguments += [holds.units, *holds.amounts(), *holds.slices()]
    return script("expire"), [*keys, names.leases, names.events], arguments


def _listed(store: RedisStore, row: Row) -> Holds:
    """What a ledger row holds, in the generation that its counters have now."""
    names = store.asking.names

    def generation(key: str) -> int:
        whole = names.whole(key)
        return int(store.wire.execute("HGET", names.opened(whole), whole) or 0)

    return held.of_row(row, generation)


def _of_ledger(store: RedisStore, row: Row) -> Row | None:
    drainage.drain(store)
    return run(store.alias, lambda c: ledger.find(c, {"id": str(written_id(c, UUID(row["id"])))}))


def _restore(store: RedisStore, found: Row, holds: Holds) -> None:
    """An open reservation that Redis has lost, and the ledger has not."""
    name = store.asking.names.reservation(found["id"])
    store.wire.execute("SET", name, f"R|{holds.text}", "NX")


def _again(store: RedisStore, found: Row, row: Row) -> Outcome:
    same = ("cost_micros", "input_tokens", "output_tokens")
    if row["state"] == "released" or all(found[name] == row[name] for name in same):
        return Outcome.REPEAT
    events = store.asking.names.events
    store.wire.execute("XADD", events, "*", "i", found["id"], "s", "c", "d", "{}")
    return Outcome.CONFLICT
