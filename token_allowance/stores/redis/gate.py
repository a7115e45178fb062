"""One caller at a time behind a gate: whoever must read the ledger as it stands.

While it is closed no script moves a counter, so what the ledger holds, once the events before it
are taken over, is all there is: nothing can interleave with seeding, rebuilding or a cold start
(protocols B and C). A caller that dies opens it after LEASE_MILLISECONDS; one that is only slow
renews it, and whatever it writes is written in one step that checks that the gate is still its own.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Any

from token_allowance.exceptions import StoreUnavailable
from token_allowance.stores.redis.names import Names
from token_allowance.stores.redis.scripts import script
from token_allowance.stores.redis.wire import Wire

LEASE_MILLISECONDS = 5000
RENEW_SECONDS = 1.5
CHUNK = 500  # commands of one write

Command = tuple[str, str, *tuple[Any, ...]]  # its name, its key, the rest


class Gate:
    """The closed gate, as the caller that closed it holds it."""

    def __init__(self, wire: Wire, name: str, token: str) -> None:
        self._wire = wire
        self._name = name
        self._token = token
        self._done = threading.Event()

    def write(self, commands: Sequence[Command]) -> None:
        """Run commands in order; StoreUnavailable, and nothing written, if the gate was lost."""
        for start in range(0, len(commands), CHUNK):
            keys = [self._name]
            lines = []
            for word, key, *rest in commands[start : start + CHUNK]:
                keys.append(key)
                lines.append([word, len(keys), *(str(part) for part in rest)])
            if not self._wire.call(script("write"), keys, [self._token, json.dumps(lines)]):
                raise StoreUnavailable("Reading the ledger took too long; it is tried again.")

    def renew(self) -> None:
        while not self._done.wait(RENEW_SECONDS):
            with suppress(StoreUnavailable):
                self.keep()

    def open(self) -> None:
        self._done.set()
        with suppress(StoreUnavailable):
            self._set(0, "open")

    def take(self) -> bool:
        return bool(self._set(LEASE_MILLISECONDS, "take"))

    def keep(self) -> bool:
        """Renew the lease; False if the gate was lost."""
        return bool(self._set(LEASE_MILLISECONDS, "keep"))

    def _set(self, milliseconds: int, how: str) -> Any:
        return self._wire.call(script("gate"), [self._name], [self._token, milliseconds, how])


@contextmanager
def closed(wire: Wire, names: Names) -> Iterator[Gate | None]:
    """Inside, nothing moves. None if another caller is there: wait, and ask again."""
    gate = Gate(wire, names.gate, token_hex(12))
    if not gate.take():
        yield None
        return
    threading.Thread(target=gate.renew, name="token-allowance-gate", daemon=True).start()
    try:
        yield gate
    finally:
        gate.open()
