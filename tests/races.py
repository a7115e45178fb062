"""One of several processes that race for a budget: ``python -m tests.races``.

It speaks lines of JSON. The first line says where the databases and the provider are; each further
one is a round, which begins for all processes at once when the parent says so. Imports are paid for
once, however many rounds follow; the process ends when its standard input does.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

ROUND_SECONDS = 60
THREADS = 64
MODEL = "race-model"  # one whose longest answer is not known, so that no hold is clamped
PROMPT = "token " * 70 + "tokens"  # estimated at 100 tokens, as FIXED_COST charges
STORE = "token_allowance.stores.database.DatabaseStore"

Call = dict[str, Any]


def begin(databases: dict[str, str]) -> None:
    """Set Django up on the parent's test databases."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import django
    from django.conf import settings

    for alias, name in databases.items():
        settings.DATABASES[alias]["NAME"] = name
    django.setup()


class Racer:
    """What the callers of one process share: a metered client, and the reservations they hold."""

    def __init__(self, url: str) -> None:
        from openai import OpenAI

        from token_allowance import allowance

        self.client = allowance.meter(OpenAI(api_key="any", base_url=url))
        self.held: list[Any] = []
        self.threads = ThreadPoolExecutor(THREADS)

    def chat(self, call: Call) -> None:
        """A real call through the SDK, over HTTP."""
        from token_allowance import allowance

        tokens = call.pop("tokens")
        with allowance.charge_to(**call):
            self.client.chat.completions.create(
                model=MODEL, max_tokens=tokens, messages=[{"role": "user", "content": PROMPT}]
            )

    def hold(self, call: Call) -> None:
        """Reserve this many output tokens, and keep holding them."""
        from token_allowance.attribution import Charge
        from token_allowance.decisions import reserve
        from token_allowance.limits import Attribution
        from token_allowance.plans import Attempt

        attempt = Attempt(
            provider="openai", model=MODEL, input_tokens=0, max_output_tokens=call.pop("tokens")
        )
        self.held.append(reserve(attempt, Attribution(**call), Charge()))

    def settle(self) -> None:
        """Charge everything this process holds as it was estimated, in random order."""
        held, self.held = self.held, []
        random.shuffle(held)
        for _ in self.threads.map(lambda one: one.settle(one.plan.estimate), held):
            pass

    def race(self, make: Callable[[Call], None], callers: list[list[Call]]) -> dict[str, Any]:
        """Let all callers go at once, each with its calls one after the other; what came of it."""
        from token_allowance.exceptions import AllowanceExceeded

        start = threading.Barrier(len(callers) + 1)

        def run(calls: list[Call]) -> list[str]:
            start.wait()
            outcomes = []
            for call in calls:
                try:
                    make(call)
                    outcomes.append("admitted")
                except BaseException as error:
                    refused = type(error) is AllowanceExceeded  # TooLarge would be another answer
                    outcomes.append("refused" if refused else f"{type(error).__name__}: {error}")
            return outcomes

        running = [self.threads.submit(run, calls) for calls in callers]
        say("ready")
        sys.stdin.readline()
        start.wait()
        outcomes = [outcome for one in running for outcome in one.result()]
        return {
            "admitted": outcomes.count("admitted"),
            "refused": outcomes.count("refused"),
            "errors": [text for text in outcomes if text not in ("admitted", "refused")],
        }


def say(document: Any) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def main() -> None:
    first = json.loads(sys.stdin.readline())
    begin(first["databases"])
    from django.test import override_settings

    from token_allowance import refusal_counts
    from token_allowance.stores.connections import own

    racer = Racer(first["url"])
    say("set up")
    for line in iter(sys.stdin.readline, ""):
        faulthandler.dump_traceback_later(ROUND_SECONDS, exit=True)
        task = json.loads(line)
        store = task.get("store") or {"BACKEND": STORE, "OPTIONS": {"alias": task["alias"]}}
        chosen = {"STORE": store, "WAIT_SECONDS": task.get("wait_seconds", 0)}
        with override_settings(TOKEN_ALLOWANCE=chosen):
            match task["kind"]:
                case "chat":
                    say(racer.race(racer.chat, task["callers"]))
                case "hold":
                    say(racer.race(racer.hold, task["callers"]))
                case "settle":
                    racer.settle()
                    say("settled")
                case "rest":
                    racer.held.clear()
                    refusal_counts.flush()  # else it opens a connection when we have closed ours
                    own(task["alias"]).close()
                    say("resting")
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
