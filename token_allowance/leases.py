"""Ending the reservations of which nothing more was heard."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from token_allowance import conf, metrics
from token_allowance.stores.base import Room

AT_ONCE = 500
MOST_ROUNDS = 200  # what is left then waits for the next time


def expire(now: dt.datetime, most_rounds: int = MOST_ROUNDS) -> int:
    """End the reservations whose lease has run out by the store's clock; how many there were."""
    charge = conf.current().ON_EXPIRE == "charge"
    total = 0
    for _ in range(most_rounds):
        ended: int = conf.store().expire(now, charge=charge, most=AT_ONCE)
        total += ended
        if ended < AT_ONCE:
            break
    if total:
        metrics.count(metrics.CALLS_EXPIRED, total)
    return total


def expire_due(rooms: Iterable[Room], now: dt.datetime) -> bool:
    """Before a refusal, end leases that have run out: the dead must not block (case C46)."""
    return any(room.reserved for room in rooms) and expire(now, 1) > 0
