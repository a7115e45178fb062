"""One of several processes under load while a switch is pulled: ``python -m tests.flips``.

It speaks lines of JSON. The first says where the databases are. ``{"load": store}`` lets its
threads make calls without a pause, ``{"since": [began_at, returned_at]}`` asks what became of them,
``{"rest": alias}`` ends them, and ``{"engage": store}`` engages a switch and dies of it. It ends
when its standard input does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from typing import Any

from tests.races import begin, say

THREADS = 3
TASKS = 4
CALL: dict[str, Any] = {
    "provider": "openai", "model": "m", "input_tokens": 1, "max_output_tokens": 1,
    "tenant": "acme", "user": "ana", "feature": "agent",
}  # fmt: skip
SECONDS = 120  # then a load ends whatever happens


class Load:
    """Calls of one feature, each with when it began and ended (CLOCK_MONOTONIC, which processes
    share) and whether it was admitted."""

    def __init__(self, store: dict[str, Any]) -> None:
        from django.test import override_settings

        self.settings = override_settings(TOKEN_ALLOWANCE={"STORE": store})
        self.settings.enable()
        self.calls: list[tuple[float, float, bool]] = []
        self.errors: list[str] = []
        self.over = threading.Event()
        work = [self._run] * THREADS + [lambda: asyncio.run(self._run_tasks())]
        self.threads = [threading.Thread(target=one, daemon=True) for one in work]
        for thread in self.threads:
            thread.start()

    def _run(self) -> None:
        from token_allowance import allowance

        end = time.monotonic() + SECONDS
        while (began := time.monotonic()) < end and not self.over.is_set():
            try:
                with allowance.call(**CALL) as call:
                    call.release()
                self.calls.append((began, time.monotonic(), True))
            except allowance.SwitchEngaged:
                self.calls.append((began, time.monotonic(), False))
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")

    async def _run_tasks(self) -> None:
        await asyncio.gather(*(self._arun() for _ in range(TASKS)))

    async def _arun(self) -> None:
        """The same on an event loop, where another path leads to the store."""
        from token_allowance import allowance

        end = time.monotonic() + SECONDS
        while (began := time.monotonic()) < end and not self.over.is_set():
            try:
                async with allowance.call(**CALL) as call:
                    call.record(allowance.Usage(input_tokens=1, output_tokens=1))
                self.calls.append((began, time.monotonic(), True))
            except allowance.SwitchEngaged:
                self.calls.append((began, time.monotonic(), False))
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")

    def report(self, began_at: float, returned_at: float) -> dict[str, Any]:
        """The calls since ``engage`` began; those admitted late began after it had returned."""
        calls = [call for call in list(self.calls) if call[0] >= began_at]
        admitted = [began for began, _, admitted in calls if admitted]
        refused = [ended for _, ended, admitted in calls if not admitted]
        return {
            "admitted": len(admitted),
            "refused": len(refused),
            "late": sum(began > returned_at for began in admitted),
            "last_admitted": max(admitted, default=began_at) - began_at,
            "first_refused": min(refused, default=began_at) - began_at,
            "errors": self.errors[:3],
        }

    def rest(self, alias: str) -> None:
        """End, and close what is open: the next store is another."""
        from token_allowance.stores.connections import own

        self.over.set()
        for thread in self.threads:
            thread.join(30)
        own(alias).close()
        self.settings.disable()


def engage_and_die(store: dict[str, Any]) -> None:
    """Die after the commit, before anybody is told of it."""
    from django.test import override_settings

    from token_allowance import allowance, announcements

    def die() -> None:
        say(time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)

    announcements.changed = die
    with override_settings(TOKEN_ALLOWANCE={"STORE": store}):
        allowance.engage("feature:agent", reason="killed", by="a writer")


def main() -> None:
    begin(json.loads(sys.stdin.readline())["databases"])
    say("set up")
    load: Load | None = None
    for line in iter(sys.stdin.readline, ""):
        match json.loads(line):
            case {"load": store}:
                load = Load(store)
                say("calling")
            case {"since": [began_at, returned_at]} if load is not None:
                say(load.report(began_at, returned_at))
            case {"rest": alias} if load is not None:
                load.rest(alias)
                say("resting")
            case {"engage": store}:
                engage_and_die(store)


if __name__ == "__main__":
    main()
