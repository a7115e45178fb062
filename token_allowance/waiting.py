"""Waiting for room that calls in flight hold: a place in line, and the tries in between.

Nothing is held meanwhile: no thread of ours, no connection, no lock. Each try is a new reservation
under the policy, prices and window of its moment; only the ticket stays (protocol 15).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from token_allowance import conf, entries, threads
from token_allowance.exceptions import StoreUnavailable
from token_allowance.refusals import Held
from token_allowance.stores.base import Store
from token_allowance.tries import Try, afinished

HEAD_SECONDS = 0.02  # between the tries of who is next
STEP_SECONDS = 0.04  # more for each that stands before it
BACKOFF = 0.05  # of what it has waited, if that is more
MOST_SECONDS = 0.5
JITTER = 0.25
EXPIRY_SECONDS = 1.0  # between two looks for leases that have run out


class Made(Protocol):
    """A reservation, as far as waiting needs to know it."""

    repeated: bool

    def abandon(self) -> None: ...


M = TypeVar("M", bound=Made)


class Place:
    """One call's place in line: its ticket, and how long it may be kept."""

    def __init__(self, store: Store, seconds: float) -> None:
        self.ticket = entries.new_id()
        self._store = store
        self._seconds = seconds
        self._began = time.monotonic()
        self._looked: float | None = None
        self._stands = self._left = False

    @property
    def stands(self) -> bool:
        """May it stand in a queue?"""
        return self._stands

    def looks_for_expired(self) -> bool:
        """Is it time to look for leases that have run out? At each try would be too often."""
        now = time.monotonic()
        due = self._looked is None or now - self._looked >= EXPIRY_SECONDS
        if due:
            self._looked = now
        return due

    def tried(self, once: Callable[[Place | None], M]) -> M:
        """One try; Held if it was in vain."""
        try:
            made = once(self)
        except Held:
            self._stands = True
            if self._left:  # its caller was cancelled meanwhile
                self.leave()
            raise
        except Exception:
            raise
        except BaseException:  # an interrupt: nobody knows how far it came
            self._stands = True
            raise
        if made.repeated:
            self.leave()
        return made

    def pause(self, held: Held) -> float:
        """Seconds until the next try; raises the refusal if there is to be none."""
        waited = time.monotonic() - self._began
        left = self._seconds - waited
        if held.hopeless or left <= 0:
            raise held.refusal(waited)
        delay = max(HEAD_SECONDS + STEP_SECONDS * held.rank, BACKOFF * waited)
        delay = min(MOST_SECONDS, delay)
        return min(left, delay * random.uniform(1 - JITTER, 1 + JITTER))

    def leave(self) -> None:
        """Stand in no queue any more. A store that cannot be told forgets it in three seconds."""
        self._left = True
        if self._stands:
            with suppress(StoreUnavailable):
                self._store.leave(self.ticket)

    async def aleave(self, *, cancelled: bool) -> None:
        self._left = True  # also for a try that is still under way
        if cancelled:
            threads.later(self.leave)
        elif self._stands:
            await threads.acall(self.leave)


def reserve(once: Callable[[Place | None], M]) -> M:
    """Reserve by ``once``, again and again while only calls in flight are in the way.

    It sleeps in the caller's thread, for at most WAIT_SECONDS.
    """
    seconds = float(conf.current().WAIT_SECONDS)
    if not seconds or not conf.store().may_wait():
        return once(None)
    place = Place(conf.store(), seconds)
    try:
        while True:
            try:
                return place.tried(once)
            except Held as error:
                held = error.with_traceback(None)
            time.sleep(place.pause(held))
    except BaseException:
        place.leave()
        raise


async def areserve(begin: Callable[[Place | None], Try[M]]) -> M:
    """The same from a coroutine: a thread is used only for what its event loop cannot do.

    Cancelling it leaves nothing behind: a try that was admitted meanwhile is given back.
    """
    seconds = float(conf.current().WAIT_SECONDS)
    if not seconds or not conf.store().can_wait:
        return await afinished(lambda: begin(None), lambda rest: rest(), _abandon)
    place = Place(conf.store(), seconds)

    def once(rest: Callable[[], M]) -> M:
        return place.tried(lambda _: rest())

    try:
        while True:
            try:
                return await afinished(lambda: begin(place), once, _abandon, quick=not place.stands)
            except Held as error:
                held = error.with_traceback(None)
            await asyncio.sleep(place.pause(held))
    except BaseException as error:
        await place.aleave(cancelled=not isinstance(error, Exception))
        raise


def _abandon(made: Made) -> None:
    made.abandon()
