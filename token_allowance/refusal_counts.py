"""Refusals, counted by minute: in memory, and about every second in the policy's database.

A loop that is refused a million times writes one row a minute and waits for nothing. The caller's
transaction is not touched. A process that is killed loses its last second; while the database is
down they are kept, as many as memory may hold. Inside a test run only the metrics count: what a
host's tests provoke is nothing to keep.
"""

from __future__ import annotations

import atexit
import datetime as dt
import functools
import logging
import os
import threading
from functools import lru_cache
from types import TracebackType

from django.db import DEFAULT_DB_ALIAS, DataError
from django.utils import timezone

from token_allowance import conf, metrics, policy
from token_allowance.exceptions import (
    AllowanceError,
    AllowanceExceeded,
    StoreUnavailable,
    SwitchEngaged,
    Unattributed,
    UnknownModel,
)
from token_allowance.limits import IDENTIFIER_LENGTH, Attribution
from token_allowance.names import family
from token_allowance.refusals import Held
from token_allowance.stores import refusals
from token_allowance.stores.connections import in_tests, run
from token_allowance.stores.refusals import Refused, Times

logger = logging.getLogger("token_allowance")
KINDS = (AllowanceExceeded, SwitchEngaged, StoreUnavailable, UnknownModel, Unattributed)
EVERY_SECONDS = 1.0
MOST_SECONDS = 30.0  # between two tries while the database is down
EXIT_SECONDS = 5.0
MOST_A_MINUTE = 1_000  # rows that one process tells apart: then people, and in the end all, are one
MOST_WAITING = 20_000
MOST_BYTES = 2_000  # of one row's names: an index of PostgreSQL takes 2,704
CHUNK = 200
LENGTHS = {"code": 64, "key": None, "provider": 64}


class counted:
    """``with counted(provider, model, attribution):`` around what may be refused.

    A call that waits for calls in flight is counted when it is finally refused.
    """

    def __init__(self, provider: str, model: str, attribution: Attribution) -> None:
        self.facts = (provider, model, attribution)

    def __enter__(self) -> None:
        """Nothing to begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if isinstance(error, KINDS):
            note(error, *self.facts)
        elif isinstance(error, Held):
            refusal = error.refusal
            error.refusal = lambda waited_seconds: self._noted(refusal(waited_seconds))

    def _noted(self, error: AllowanceExceeded) -> AllowanceExceeded:
        note(error, *self.facts)
        return error


def note(error: AllowanceError, provider: str, model: str, attribution: Attribution) -> None:
    """Count one refusal. Neither raises nor waits."""
    reason = code(error)
    metrics.count(metrics.CALLS_REFUSED, code=reason, provider=provider)
    if in_tests():
        return
    now = timezone.now()
    known = policy.known()
    names = _fitting(
        reason, getattr(error, "key", ""), attribution.tenant, attribution.user,
        attribution.feature, provider, known.model(model) if known else family(model),
    )  # fmt: skip
    _tally.add(Refused(now.replace(second=0, microsecond=0), *names), now)
    _writer.wake()


def code(error: AllowanceError) -> str:
    """Why: of a budget ``exhausted``, ``held``, ``too_large`` or ``cap``, else the error's code."""
    return str(error.reason if isinstance(error, AllowanceExceeded) else error.code)


def flush() -> bool:
    """Write what this process has counted so far; False if it has to be kept for later."""
    return _writer.write()


class Tally:
    """What was counted and is not written yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Refused, Times] = {}
        self._minute: dt.datetime | None = None
        self._seen: set[Refused] = set()  # rows of this minute, also those that are written
        self._lost = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, row: Refused, now: dt.datetime) -> None:
        with self._lock:
            if row.starts_at != self._minute:
                self._minute, self._seen = row.starts_at, set()
            self._add(self._folded(row), Times(1, now, now))

    def take(self) -> list[tuple[Refused, Times]]:
        with self._lock:
            taken, self._waiting = self._waiting, {}
            lost, self._lost = self._lost, 0
        if lost:
            logger.error("token_allowance: %d refusals are not counted: too many waited", lost)
        return sorted(taken.items())

    def give_back(self, rows: list[tuple[Refused, Times]]) -> None:
        with self._lock:
            for row, times in rows:
                self._add(row, times)

    def _add(self, row: Refused, times: Times) -> None:
        before = self._waiting.get(row)
        if before is None and len(self._waiting) >= MOST_WAITING:
            self._lost += times.calls
            return
        self._waiting[row] = times if before is None else before.plus(times)

    def _folded(self, row: Refused) -> Refused:
        """The row, or one that tells less apart if this minute has too many, or it is too long."""
        nobody = row._replace(key="", user="")
        for one, most in ((row, MOST_A_MINUTE), (nobody, 2 * MOST_A_MINUTE)):
            if one in self._seen:
                return one
            if len(self._seen) < most and len("".join(one[1:]).encode()) <= MOST_BYTES:
                self._seen.add(one)
                return one
        return Refused(row.starts_at, row.code)


class Writer:
    """Writes the tally, in a thread that lives while there is something to write."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._running = False

    def wake(self) -> None:
        with self._lock:
            if self._running:
                return
            self._running = True
        try:
            threading.Thread(target=self._run, name="token-allowance-refusals", daemon=True).start()
        except RuntimeError:  # no thread can be had: at the interpreter's end, or of too many
            self._running = False

    def _run(self) -> None:
        end, pause = threading.Event(), EVERY_SECONDS
        while not end.wait(pause):
            pause = EVERY_SECONDS if self.write() else min(MOST_SECONDS, 2 * pause)
            with self._lock:
                self._running = bool(self.tally)
                if not self._running:
                    return

    def write(self) -> bool:
        """Safe in any thread. What cannot be written is kept."""
        if not self._writing.acquire(timeout=EXIT_SECONDS):
            return False
        try:
            rows = self.tally.take()
            while rows:
                chunk, rows = rows[:CHUNK], rows[CHUNK:]
                if not self._written(chunk):
                    self.tally.give_back(chunk + rows)
                    return False
            return True
        finally:
            self._writing.release()

    @staticmethod
    def _written(chunk: list[tuple[Refused, Times]]) -> bool:
        try:
            alias = getattr(conf.store(), "alias", DEFAULT_DB_ALIAS)
            run(alias, functools.partial(refusals.add, counted=chunk))
        except StoreUnavailable as error:
            if isinstance(error.__cause__, DataError):
                logger.exception("token_allowance: %d counts of refusals are lost", len(chunk))
                return True
            logger.warning("token_allowance: the database is down; counts of refusals wait")
            return False
        except Exception:
            logger.exception("token_allowance: counting refusals failed; it is tried again")
            return False
        return True


@lru_cache(maxsize=256)  # a loop that is refused asks for the same again and again
def _fitting(*values: str) -> tuple[str, ...]:
    """What the columns hold of these values: the name of a model is whatever a request says."""
    texts = [text.replace("\x00", "").encode("utf-8", "replace").decode() for text in values]
    named = zip(Refused._fields[1:], texts, strict=True)
    return tuple(text[: LENGTHS.get(name, IDENTIFIER_LENGTH)] for name, text in named)


def _begin_again() -> None:
    """In a forked child: what its parent has counted is written by that."""
    global _tally, _writer
    _tally = Tally()
    _writer = Writer(_tally)


_tally = Tally()
_writer = Writer(_tally)
atexit.register(flush)
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork either
    os.register_at_fork(after_in_child=_begin_again)
