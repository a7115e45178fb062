"""Ending the reservations of which nothing more was heard."""

from __future__ import annotations

import datetime as dt

from token_allowance import conf, metrics

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
