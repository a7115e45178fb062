"""Asking a script until it decides: it may have to wait, or to be told of another epoch."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from token_allowance.exceptions import StoreUnavailable
from token_allowance.stores.redis.names import Names
from token_allowance.stores.redis.scripts import Script
from token_allowance.stores.redis.wire import Wire

PATIENCE_SECONDS = 15.0  # behind a gate: longer than one that its owner left closed
PAUSE_SECONDS = 0.004

Question = tuple[Script, Sequence[str], Sequence[Any]]


class Asking:
    """One store's wire, with the epoch that this process believes in."""

    def __init__(self, wire: Wire, prefix: str, meet: Callable[[str], None]) -> None:
        self.wire = wire
        self.prefix = prefix
        self.names = Names(prefix, 0)
        self._meet = meet  # called with the marker that a server has, "" for none

    def begin(self, epoch: int, opened_at: int = 0) -> None:
        """Believe in this epoch from now on."""
        self.names = Names(self.prefix, epoch, opened_at)

    def ask(self, question: Callable[..., Question], *given: Any) -> list[Any]:
        """The answer to ``question(names, *given)``, its first word as text.

        StoreUnavailable if it has to wait longer than PATIENCE_SECONDS.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            answer = self.wire.call(*question(self.names, *given))
            word = answer[0]
            if word == b"stale":
                self._meet(answer[1].decode())
            elif word != b"wait":
                answer[0] = word.decode()
                return answer  # type: ignore[no-any-return]
            if time.monotonic() > deadline:
                raise StoreUnavailable("The budgets are being counted anew from the ledger.")
            if word == b"wait":
                time.sleep(PAUSE_SECONDS * (0.5 + random.random()))
