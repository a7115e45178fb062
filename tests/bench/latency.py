"""Added latency: the same SDK call metered and unmetered, in pairs, in random order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

from anthropic import Anthropic
from openai import AsyncOpenAI, OpenAI

from project.provider import ProviderProcess
from tests.bench.figures import milliseconds, progress, worst_milliseconds
from tests.bench.stage import ANTHROPIC_MODEL, DURABLE, FULL, OPENAI_MODEL, RELAXED, STORES, using

COMMITTED = "SELECT pg_logical_emit_message(true, 'bench', '.')"  # the least that is written
MESSAGES = [{"role": "user", "content": "Say hello."}]
WARM_UP = 10
Pairs = list[tuple[float, float]]  # seconds without and with metering


def rows(provider: ProviderProcess, number: int) -> Iterator[list[str]]:
    """One row per store and client."""
    from token_allowance import allowance

    with (
        OpenAI(api_key="any", base_url=provider.openai_url) as openai,
        Anthropic(api_key="any", base_url=provider.anthropic_url) as anthropic,
    ):
        for store in STORES:
            with using(store), charged():
                metered = allowance.meter(openai)
                metered_anthropic = allowance.meter(anthropic)
                measured = {
                    "openai": paired(chat(openai), chat(metered), number),
                    "openai, stream": paired(stream(openai), stream(metered), number),
                    "openai, async": asyncio.run(paired_async(provider, number)),
                    "anthropic": paired(message(anthropic), message(metered_anthropic), number),
                }
                for client, pairs in measured.items():
                    yield [store, client, *_figures(pairs)]
                progress(f"latency on {store} is measured")


def refusals(provider: ProviderProcess, number: int) -> Iterator[list[str]]:
    """How long a caller waits for a refusal, through the SDK."""
    from token_allowance import allowance

    with OpenAI(api_key="any", base_url=provider.openai_url) as client:
        for store in STORES:
            with using(store), charged(feature=FULL):
                call = chat(allowance.meter(client))
                taken = [_refused(call) for _ in range(WARM_UP + number)][WARM_UP:]
                yield [store, milliseconds(taken), worst_milliseconds(taken)]


def commits(number: int) -> Iterator[list[str]]:
    """How long the disk takes: a transaction that writes a few bytes, awaited and not."""
    from token_allowance import conf
    from token_allowance.stores import statements

    for store in (DURABLE, RELAXED):
        with using(store):
            run = conf.store().run
            write = partial(run, lambda connection: statements.one(connection, COMMITTED, []))
            taken = [_timed(write) for _ in range(WARM_UP + number)][WARM_UP:]
            yield [store, milliseconds(taken), worst_milliseconds(taken)]


@contextmanager
def charged(feature: str = "bench") -> Iterator[None]:
    from token_allowance import allowance

    with allowance.charge_to(tenant="acme", user="ada", feature=feature):
        yield


def chat(client: Any) -> Callable[[], Any]:
    create = client.chat.completions.create
    return lambda: create(model=OPENAI_MODEL, messages=MESSAGES, max_tokens=100)


def stream(client: Any) -> Callable[[], Any]:
    create = client.chat.completions.create
    return lambda: list(create(model=OPENAI_MODEL, messages=MESSAGES, max_tokens=100, stream=True))


def message(client: Any) -> Callable[[], Any]:
    create = client.messages.create
    return lambda: create(model=ANTHROPIC_MODEL, messages=MESSAGES, max_tokens=100)


def paired(plain: Callable[[], Any], metered: Callable[[], Any], number: int) -> Pairs:
    pairs = []
    for _ in range(WARM_UP + number):
        calls = [plain, metered]
        random.shuffle(calls)
        seconds = {call: _timed(call) for call in calls}
        pairs.append((seconds[plain], seconds[metered]))
    return pairs[WARM_UP:]


async def paired_async(provider: ProviderProcess, number: int) -> Pairs:
    from token_allowance import allowance

    async with AsyncOpenAI(api_key="any", base_url=provider.openai_url) as client:
        plain, metered = chat(client), chat(allowance.meter(client))
        pairs = []
        for _ in range(WARM_UP + number):
            calls = [plain, metered]
            random.shuffle(calls)
            seconds = {call: await _timed_async(call) for call in calls}
            pairs.append((seconds[plain], seconds[metered]))
    return pairs[WARM_UP:]


def _figures(pairs: Pairs) -> list[str]:
    added = [metered - plain for plain, metered in pairs]
    plains, metereds = zip(*pairs, strict=True)
    return [
        milliseconds(plains),
        milliseconds(metereds),
        milliseconds(added),
        worst_milliseconds(added),
    ]


def _timed(call: Callable[[], Any]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began


async def _timed_async(call: Callable[[], Awaitable[Any]]) -> float:
    began = perf_counter()
    await call()
    return perf_counter() - began


def _refused(call: Callable[[], Any]) -> float:
    from token_allowance import allowance

    began = perf_counter()
    try:
        call()
    except allowance.AllowanceExceeded:
        return perf_counter() - began
    raise AssertionError("a budget of no calls has admitted one")
