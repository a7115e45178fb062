"""What the tests of waiting share: calls that hold room, calls that wait for it, and who does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import pytest
from django.conf import LazySettings
from django.conf import settings as configured
from django.test import override_settings

from token_allowance import allowance, conf
from token_allowance.exceptions import AllowanceExceeded
from token_allowance.models import Limit
from token_allowance.stores.base import Outcome
from token_allowance.usage import Usage

AMOUNT = 100
both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@pytest.fixture
def limit(database: str, settings: LazySettings) -> Limit:
    """A hundred tokens for each tenant, in each database, for which a call waits ten seconds."""
    wait(settings, 10)
    return Limit.objects.using(database).create(
        unit="tokens", amount=AMOUNT, window="total", tenant="*"
    )


def wait(settings: LazySettings, seconds: float) -> None:
    settings.TOKEN_ALLOWANCE = {**getattr(settings, conf.NAME), "WAIT_SECONDS": seconds}


def call(tokens: int, tenant: str = "acme", **more: Any) -> allowance.call:
    return allowance.call(
        provider="openai", model="m", input_tokens=tokens, max_output_tokens=0, tenant=tenant,
        **more,
    )  # fmt: skip


@contextmanager
def in_flight(tokens: int) -> Iterator[allowance.call]:
    """Somebody else's call, in which those made inside the block are not made."""
    made = call(tokens)
    copy_context().run(made.__enter__)
    try:
        yield made
    finally:
        copy_context().run(made.__exit__, None, None, None)


def ask(tokens: int, used_tokens: int = 1, tenant: str = "acme", seconds: float = 0) -> float:
    """A whole call; when it was let in."""
    with call(tokens, tenant) as made:
        entered = time.monotonic()
        time.sleep(seconds)
        made.record(Usage(used_tokens))
    return entered


async def aask(tokens: int, used_tokens: int = 1, tenant: str = "acme") -> float:
    async with call(tokens, tenant) as made:
        entered = time.monotonic()
        made.record(Usage(used_tokens))
    return entered


@contextmanager
def asking(tokens: int, asynchronous: bool = False) -> Iterator[Future[float]]:
    """Ask in another thread."""
    with ThreadPoolExecutor(1) as thread:
        if asynchronous:
            yield thread.submit(lambda: asyncio.run(aask(tokens)))
        else:
            yield thread.submit(ask, tokens)


@pytest.fixture
def tries(limit: Limit, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The ticket of each reserve that the store refuses."""
    kind, seen = type(conf.store()), []
    original = kind.reserve

    def reserve(store: Any, request: Any) -> Any:
        decision = original(store, request)
        if decision.outcome is Outcome.REFUSED:
            seen.append(request.ticket)
        return decision

    monkeypatch.setattr(kind, "reserve", reserve)
    return seen


def stands(tries: list[Any], calls: int = 1) -> Callable[[], bool]:
    """Have so many calls been refused, and do they wait?"""
    return lambda: sum(tries.count(ticket) > 1 for ticket in set(tries)) >= calls


def admitted_at_once(tokens: int) -> bool:
    """Would somebody who does not wait be let in, so that nobody stands in line?"""
    with override_settings(TOKEN_ALLOWANCE={**getattr(configured, conf.NAME), "WAIT_SECONDS": 0}):
        try:
            ask(tokens)
        except AllowanceExceeded:
            return False
    return True
