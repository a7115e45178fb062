"""A process that makes metered calls over HTTP until it is told to end, or is killed.

It notes in a file of its own, by trace id, which calls it began and how they ended for it, and
when. Another process writes into the ledger what a store has decided.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
from django.core.management.base import OutputWrapper
from django.db import close_old_connections

from tests.callers import say
from tests.metering import CERTIFICATES, CLAUDE, GPT, KEY, KINDS, MAX_TOKENS
from token_allowance import allowance, settlements
from token_allowance.exceptions import AllowanceExceeded, StoreUnavailable
from token_allowance.management.subcommands import drain

THREADS = 2
PROMPT = [{"role": "user", "content": "please " * 120}]  # more than the 100 tokens reported
TENANTS, USERS = "ab", "uv"
WAIT_SECONDS = 0.05
CALL_SECONDS = 10.0
Note = Callable[[str, str], None]


def call_models(url: str, folder: str, seed: int) -> None:
    """Two threads of calls. SIGTERM lets each finish the call it is in."""
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    with (Path(folder) / f"{os.getpid()}.calls").open("ab", buffering=0) as file:

        def note(trace: str, what: str) -> None:
            line = f"{trace} {time.time():.3f} {what}\n"
            file.write(line.encode())  # one write, which a kill cannot tear

        numbers = count()
        threads = [
            threading.Thread(target=_calls, args=(url, f"{seed}-{n}", numbers, note, ending))
            for n in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        say(os.getpid())
        for thread in threads:
            thread.join()
        settlements.apply_waiting()  # as at the exit of a process that is no fork
        note("-", "ended")


def drain_for_ever(every_seconds: float) -> None:
    """As ``manage.py allowance drain --loop`` does, until it is told to end."""
    with drain.told_to_end() as end, Path(os.devnull).open("w") as nowhere:
        say(os.getpid())
        drain.loop(OutputWrapper(nowhere), every_seconds, end)


def _calls(url: str, seed: str, numbers: Any, note: Note, ending: threading.Event) -> None:
    chance = random.Random(seed)
    clients = [_client("openai", f"{url}/v1"), _client("anthropic", url)]
    while not ending.is_set():
        trace = f"{os.getpid()}-{next(numbers)}"
        note(trace, "began")
        note(trace, _outcome(chance, chance.choice(clients), trace))
        close_old_connections()


def _client(name: str, url: str) -> Any:
    kind, http = KINDS[name, False]
    client = kind(
        api_key=KEY, base_url=url, max_retries=1, timeout=CALL_SECONDS,
        http_client=http(verify=CERTIFICATES),
    )  # fmt: skip
    return allowance.meter(client, feature="chaos")


def _outcome(chance: random.Random, client: Any, trace: str) -> str:
    """How one call ended for its caller."""
    try:
        with allowance.charge_to(
            tenant=chance.choice(TENANTS), user=chance.choice(USERS), trace_id=trace
        ):
            return _call(chance, client, trace)
    except AllowanceExceeded:
        time.sleep(WAIT_SECONDS)
        return "refused"
    except StoreUnavailable:
        time.sleep(WAIT_SECONDS)
        return "unavailable"
    except (openai.APIError, anthropic.APIError, httpx2.HTTPError) as error:
        return f"failed by {type(error).__name__}"
    except Exception as error:
        return f"surprised by {type(error).__module__}.{type(error).__name__}"


def _call(chance: random.Random, client: Any, trace: str) -> str:
    asked: dict[str, Any] = {"messages": PROMPT, "max_tokens": MAX_TOKENS}
    asked["extra_headers"] = {"x-trace-id": trace}
    is_openai = isinstance(client, openai.OpenAI)
    create = client.chat.completions.create if is_openai else client.messages.create
    asked["model"] = GPT if is_openai else CLAUDE
    if chance.random() < 0.5:
        create(**asked)
        return "answered"
    events = create(**asked, stream=True)
    leaves_at = chance.randrange(3) if chance.random() < 0.2 else None
    for number, _ in enumerate(events):
        if number == leaves_at:
            events.close()
            return "left"
    return "answered"
