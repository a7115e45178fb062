"""Settlements on their way to the store, kept while it is down and applied once it is back."""

from __future__ import annotations

import atexit
import datetime as dt
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

from django.db import DataError, IntegrityError, ProgrammingError

from token_allowance import conf, entries, metrics, signals, threads
from token_allowance.bills import Account, served_model, settled, stored_prices
from token_allowance.exceptions import ReservationError, StoreUnavailable
from token_allowance.limits import NOTHING, Amounts
from token_allowance.plans import Attempt
from token_allowance.stores.base import Outcome, Row, Settlement, Store
from token_allowance.stores.events import moment
from token_allowance.stores.rollups import NOT_BY_THE_PROVIDER
from token_allowance.usage import Usage

logger = logging.getLogger("token_allowance")
WAITING_MOST = 10_000

TRIES = 3  # of a settlement that fails although the store is there

Make = Callable[[], Settlement]  # raises StoreUnavailable while it cannot be made

_waiting: deque[tuple[Make, int]] = deque(maxlen=WAITING_MOST)  # with how often each has failed


class _Aside(threading.local):
    makes: list[Make] | None = None


_aside = _Aside()


@contextmanager
def put_aside(makes: list[Make]) -> Iterator[None]:
    """In this block, which awaits nothing, what is to be applied is only noted in ``makes``."""
    before, _aside.makes = _aside.makes, makes
    try:
        yield
    finally:
        _aside.makes = before


def apply(make: Make) -> None:
    """Settle now or, if that fails, with a later call; no Exception of it reaches the caller."""
    if _aside.makes is not None:
        _aside.makes.append(make)
        return
    if _applied(make, 0):
        apply_waiting()


def apply_waiting() -> None:
    """Apply what is waiting, as far as the store lets us; settling twice changes nothing."""
    if _waiting and threads.on_loop():
        threads.later(apply_waiting)
        return
    for _ in range(len(_waiting)):
        try:
            make, failures = _waiting.popleft()
        except IndexError:
            return
        if not _applied(make, failures):
            return


def _at_exit() -> None:
    threads.drain()
    apply_waiting()


atexit.register(_at_exit)  # a process that ends in order may be the only one that knows


def _applied(make: Make, failures: int) -> bool:
    """Settle; if it fails, keep it for later and return False."""
    try:
        settlement = make()
        make = lambda: settlement  # noqa: E731 - made once: it gives back to the caps
        outcome = conf.store().settle(settlement)
    except StoreUnavailable as error:
        if isinstance(error.__cause__, DataError | IntegrityError | ProgrammingError):
            logger.exception("token_allowance: a call cannot be settled; its lease ends it")
            return True
        logger.error("token_allowance: the store is down; a settlement waits")
        _wait(make, failures)
        return False
    except Exception:
        if failures + 1 >= TRIES:
            logger.exception("token_allowance: a call cannot be settled; its lease ends it")
            return True
        logger.exception("token_allowance: settling a call failed; it is tried again")
        _wait(make, failures + 1)
        return False
    except BaseException:  # a time limit or an interrupt of the caller's: it goes on
        _wait(make, failures)
        raise
    if outcome is Outcome.CONFLICT:
        logger.warning("token_allowance: %s was settled before with other figures", settlement.id)
    tell(outcome, settlement.row)
    return True


def _wait(make: Make, failures: int) -> None:
    if len(_waiting) >= WAITING_MOST:
        logger.error("token_allowance: %d settlements wait; the oldest is lost", WAITING_MOST)
    _waiting.append((make, failures))


def settle_deferred(deferred_id: str, usage: Usage) -> Outcome:
    """Settle the call that was deferred under this id, from any process. ReservationError if none.

    The price is the one in force when it was reserved.
    """
    store: Store = conf.store()
    row = store.find(deferred_id=deferred_id)
    if row is None:
        raise ReservationError(f"No call was deferred under {deferred_id!r}.")
    return settle_row(store, row, Account(usage=usage))


def settle_row(store: Store, row: Row, account: Account) -> Outcome:
    """Settle a call that some process has reserved, by its ledger row."""
    attempt = Attempt(
        provider=row["provider"],
        model=served_model(row),
        input_tokens=0,
        service_tier=(row["price"] or {}).get("service_tier", ""),
    )
    account = replace(account, service_tier="")  # the prices kept are those of one tier
    prices = stored_prices(row, attempt.provider)
    at = dt.datetime.fromisoformat(row["created_at"])
    actual, final = settled(account, attempt, prices, at)
    final["flags"] = sorted({*row["flags"], *final["flags"]})
    return _settled(store, actual, row | final)


def charge_row(store: Store, row: Row, *flags: str) -> Outcome:
    """Charge what such a call holds: nothing better is known."""
    held = Amounts(row["reserved_micros"], row["reserved_tokens"])
    used = Usage(output_tokens=held.tokens)
    final = entries.ended("settled", {*row["flags"], *flags}, used, None, held, None)
    final |= {"flags": sorted(final["flags"]), "price": row["price"]}
    return _settled(store, held, row | final)


def release_row(store: Store, row: Row) -> Outcome:
    """Give back what such a call holds: nothing came of it."""
    final = entries.ended("released", (), Usage(), None, NOTHING, None)
    return _settled(store, NOTHING, row | final)


def _settled(store: Store, actual: Amounts, row: Row) -> Outcome:
    outcome = store.settle(Settlement(id=UUID(row["id"]), actual=actual, row=row))
    tell(outcome, row)
    return outcome


def tell(outcome: Outcome, row: Row) -> None:
    """Count the end of a call, and send it to who listens; an end that changed nothing is none."""
    provider = ("provider", row["provider"])
    if outcome is Outcome.CONFLICT:
        metrics.add([(metrics.CALLS_CONFLICTING, (provider,), 1)])
    if outcome in (Outcome.CONFLICT, Outcome.REPEAT):
        return
    flags = (*row["flags"], "late") if outcome is Outcome.LATE else row["flags"]
    labels = (provider,)
    metrics.add(
        (
            (metrics.CALLS_FINISHED, (provider, ("state", row["state"])), 1),
            *((metrics.CALLS_FLAGGED, (provider, ("flag", flag)), 1) for flag in flags),
            (metrics.COST_MICROS, labels, row["cost_micros"] or 0),
            (metrics.INPUT_TOKENS, labels, row["input_tokens"]),
            (metrics.OUTPUT_TOKENS, labels, row["output_tokens"]),
            *_beyond(row, labels),
        )
    )
    if metrics.followed():
        metrics.measure(_measured(row))
    if signals.call_finished.receivers:
        _send(row, tuple(flags))


def _beyond(row: Row, labels: metrics.Labels) -> Iterator[metrics.Counted]:
    """What was charged without the provider's word, and what above the reservation."""
    micros, reserved = row["cost_micros"] or 0, row["reserved_micros"]
    if not NOT_BY_THE_PROVIDER.isdisjoint(row["flags"]):
        yield metrics.ESTIMATED_MICROS, labels, micros
    if reserved is not None and micros > reserved:
        yield metrics.OVERAGE_MICROS, labels, micros - reserved


def _measured(row: Row) -> list[metrics.Measured]:
    """Of one call. A model is named only if it has a price: callers can make up others."""
    model = row["model"] if row["cost_micros"] is not None else "unpriced"
    labels = (("provider", row["provider"]), ("model", model))
    found: list[metrics.Measured] = []
    if row["state"] == "settled":
        found.append((metrics.CALL_TOKENS, (*labels, ("type", "input")), row["input_tokens"]))
        found.append((metrics.CALL_TOKENS, (*labels, ("type", "output")), row["output_tokens"]))
    if row["settled_at"]:
        seconds = (moment(row["settled_at"]) - moment(row["created_at"])).total_seconds()
        found.append((metrics.CALL_SECONDS, labels, max(0.0, seconds)))
    return found


def _send(row: Row, flags: tuple[str, ...]) -> None:
    try:
        signals.call_finished.send_robust(
            None, flags=flags, **{name: row[name] for name in signals.TOLD}
        )
    except Exception:
        logger.exception("token_allowance: the end of a call could not be told")
