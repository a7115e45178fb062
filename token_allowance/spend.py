"""Spending by quarter of an hour, where the ledger's own database counts budgets."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from functools import partial

from token_allowance import conf, marks
from token_allowance.stores import quarters
from token_allowance.stores.connections import run
from token_allowance.stores.database import DatabaseStore

JOB = "spend"
VERIFIED = dt.timedelta(days=2)


def fold(now: dt.datetime) -> int:
    """Bring the roll-ups up to what the ledger says; how many quarters of an hour changed.

    For each minute. Nothing to do where another store's drainer moves them. A quarter is made anew
    from all of its ledger rows: whoever prunes the ledger keeps the rows of a quarter until none
    of them is open. Killed half way, it is done again.
    """
    store = conf.store()
    if not isinstance(store, DatabaseStore):
        return 0
    mark = marks.read(store.alias, JOB)
    since = marks.since(mark, now)
    changed = _fold(store.alias, run(store.alias, lambda c: quarters.touched(c, since)))
    marks.move(store.alias, JOB, at=marks.following(mark, now))
    return changed


def verify(now: dt.datetime, back: dt.timedelta = VERIFIED) -> int:
    """Compare the last days with the ledger whole, and mend what differs; how many quarters did.

    For each day: a settlement that waited out a long standstill in some process comes in too late
    for ``fold``.
    """
    store = conf.store()
    if not isinstance(store, DatabaseStore):
        return 0
    found = run(store.alias, lambda c: quarters.between(c, now - back, now))
    return _fold(store.alias, found)


def _fold(alias: str, starts: Iterable[dt.datetime]) -> int:
    """Each in a transaction of its own: SQLite lets nobody settle while one lasts."""
    return sum(run(alias, partial(quarters.fold, start=start, job=JOB)) > 0 for start in starts)
