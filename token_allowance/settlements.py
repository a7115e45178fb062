"""Settlements on their way to the store, kept while it is down and applied once it is back."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from uuid import UUID

from django.db import DataError, IntegrityError, ProgrammingError

from token_allowance import conf, entries
from token_allowance.exceptions import ReservationError, StoreUnavailable
from token_allowance.plans import amounts
from token_allowance.pricing import ModelPrice, cost
from token_allowance.stores.base import Outcome, Settlement, Store
from token_allowance.usage import Usage

logger = logging.getLogger("token_allowance")
WAITING_MOST = 10_000

Make = Callable[[], Settlement]  # raises StoreUnavailable while it cannot be made

_waiting: deque[Make] = deque(maxlen=WAITING_MOST)


def apply(make: Make) -> None:
    """Settle now or, if the store is down, with a later call; never raises for the store."""
    if _applied(make):
        apply_waiting()


def apply_waiting() -> None:
    """Apply what is waiting, as far as the store lets us; settling twice changes nothing."""
    for _ in range(len(_waiting)):
        try:
            make = _waiting.popleft()
        except IndexError:
            return
        if not _applied(make):
            return


def _applied(make: Make) -> bool:
    """Settle; if the store is down, keep it for later and return False."""
    try:
        settlement = make()
    except StoreUnavailable:
        logger.error("token_allowance: the store is down; a settlement waits")
        _waiting.append(make)
        return False
    try:
        outcome = conf.store().settle(settlement)
    except StoreUnavailable as error:
        if isinstance(error.__cause__, DataError | IntegrityError | ProgrammingError):
            logger.exception(
                "token_allowance: %s cannot be settled; its lease ends it", settlement.id
            )
            return True
        logger.error("token_allowance: the store is down; settling %s waits", settlement.id)
        _waiting.append(lambda: settlement)
        return False
    if outcome is Outcome.CONFLICT:
        logger.warning("token_allowance: %s was settled before with other figures", settlement.id)
    return True


def settle_deferred(deferred_id: str, usage: Usage) -> Outcome:
    """Settle the call that was deferred under this id, from any process. ReservationError if none.

    The price is the one in force when it was reserved.
    """
    store: Store = conf.store()
    row = store.find(deferred_id=deferred_id)
    if row is None:
        raise ReservationError(f"No call was deferred under {deferred_id!r}.")
    price = ModelPrice.from_dict(row["price"]) if row["price"] else None
    priced = cost(usage, price) if price else None
    actual = amounts(usage, priced)
    final = row | entries.ended("settled", (), usage, price, actual, priced)
    return store.settle(Settlement(id=UUID(row["id"]), actual=actual, row=final))
