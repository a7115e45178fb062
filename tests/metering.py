"""What the metering tests share: a provider, prices, wide limits, clients, and what they leave.

Prices are round, so that figures can be read: gpt-5-mini costs 1 and 2 micro-dollars a token,
claude-sonnet-5 3 and 15 (cache reads 0.30). A call asks for at most 100 tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from decimal import Decimal
from types import TracebackType
from typing import Any, Self
from unittest import mock

import anthropic
import httpx2
import openai
from django.db import connections
from django.test import override_settings
from django.utils import timezone

from project.provider import Provider
from token_allowance import allowance, conf, settlements
from token_allowance.estimate import message_tokens
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import Limit, Price, Reservation
from token_allowance.stores.connections import own
from token_allowance.stores.database import DatabaseStore
from token_allowance.usage import Usage

SDKS = ("openai", "anthropic")
GPT = "gpt-5-mini"
CLAUDE = "claude-sonnet-5"
KEY = "sk-never-stored"
ASK = [{"role": "user", "content": "please say something about the weather in Lisbon"}]
MAX_TOKENS = 100
ROOM = {"cost": 100_000_000, "tokens": 100_000_000, "calls": 10_000}
KINDS: dict[tuple[str, bool], tuple[Any, Any]] = {
    ("openai", False): (openai.OpenAI, openai.DefaultHttpxClient),
    ("openai", True): (openai.AsyncOpenAI, openai.DefaultAsyncHttpxClient),
    ("anthropic", False): (anthropic.Anthropic, anthropic.DefaultHttpxClient),
    ("anthropic", True): (anthropic.AsyncAnthropic, anthropic.DefaultAsyncHttpxClient),
}
CERTIFICATES = httpx2.create_ssl_context()  # reading them anew for each client is most of a test
RATES = {"openai": (1, 2), "anthropic": (3, 15)}
DATABASE_STORE = "token_allowance.stores.database.DatabaseStore"
DEADLINE_SECONDS = 10.0
ESTIMATE = {sdk: Usage(message_tokens(ASK, sdk), MAX_TOKENS) for sdk in SDKS}


def micros(sdk: str, input_tokens: int, output_tokens: int) -> int:
    """What so many tokens cost, nothing of them cached."""
    input_rate, output_rate = RATES[sdk]
    return input_tokens * input_rate + output_tokens * output_rate


RESERVED = {sdk: micros(sdk, e.input_tokens, e.output_tokens) for sdk, e in ESTIMATE.items()}
"""Micro-dollars held by one call."""


class FlakyStore(DatabaseStore):
    """A DatabaseStore whose operations named in ``down`` fail; it counts how often it was asked."""

    down: set[str] = set()
    asked: dict[str, int] = {}

    def _ask(self, operation: str) -> None:
        self.asked[operation] = self.asked.get(operation, 0) + 1
        if operation in self.down:
            raise StoreUnavailable("the store is down, as the test says")

    def reserve(self, request: Any) -> Any:
        self._ask("reserve")
        return super().reserve(request)

    def settle(self, settlement: Any) -> Any:
        self._ask("settle")
        return super().settle(settlement)

    def extend(self, request: Any, *, deferred_id: str | None = None) -> Any:
        self._ask("extend")
        return super().extend(request, deferred_id=deferred_id)

    def usage(self, budgets: Any) -> Any:
        self._ask("usage")
        return super().usage(budgets)


class Lab:
    """``with Lab() as lab``: a provider, prices and limits; at the end the books must balance."""

    def __init__(self, using: str = "default", **settings: Any) -> None:
        self.using = using
        store = {"BACKEND": "tests.metering.FlakyStore", "OPTIONS": {"alias": using}}
        self._settings = override_settings(TOKEN_ALLOWANCE={"STORE": store, **settings})
        # As in production, a connection is kept for the next operation: a test makes twenty.
        self._keeping = mock.patch(
            "token_allowance.stores.connections.in_tests", return_value=False
        )
        self.provider = Provider()

    def __enter__(self) -> Self:
        FlakyStore.down, FlakyStore.asked = set(), {}
        self.provider.__enter__()
        self._settings.enable()
        self._keeping.start()
        self.price("openai", GPT, 1, 2, cache_read_mtok=Decimal("0.1"))
        self.price("anthropic", CLAUDE, 3, 15, cache_read_mtok=Decimal("0.30"))
        for unit, amount in ROOM.items():
            self.limit(unit, amount)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        try:
            rows = self.rows()
            if kind is None:
                assert len({row.id for row in rows}) == len(rows)
                assert conf.store().rebuild(timezone.now()) == []
        finally:
            FlakyStore.down = set()
            settlements._waiting.clear()
            self._keeping.stop()
            own(self.using).close()
            self._settings.disable()
            self.provider.__exit__(kind, error, tb)

    @property
    def store(self) -> type[FlakyStore]:
        return FlakyStore

    def price(self, provider: str, model: str, input_mtok: Any, output_mtok: Any, **more: Any):
        Price.objects.using(self.using).create(
            provider=provider, model=model, input_mtok=input_mtok, output_mtok=output_mtok, **more
        )

    def limit(self, unit: str, amount: int, **fields: Any) -> Limit:
        """A limit for everyone together, for ever, unless the fields say otherwise."""
        return Limit.objects.using(self.using).create(
            **{"window": "total", "unit": unit, "amount": amount, **fields}
        )

    def shrink(self, unit: str, amount: int) -> None:
        """Make the limit for everyone smaller."""
        Limit.objects.using(self.using).filter(unit=unit, tenant="", user="").update(amount=amount)

    async def ashrink(self, unit: str, amount: int) -> None:
        """The same from a coroutine, in a thread that leaves no connection behind."""

        def work() -> None:
            try:
                self.shrink(unit, amount)
            finally:
                connections.close_all()

        await asyncio.to_thread(work)

    def sdk(self, name: str, asynchronous: bool = False, **options: Any) -> Any:
        """An SDK's own client, not metered: no retries, five seconds."""
        url = self.provider.openai_url if name == "openai" else self.provider.anthropic_url
        kind, http = KINDS[name, asynchronous]
        options = {"base_url": url, "max_retries": 0, "timeout": 5.0, **options}
        return kind(api_key=KEY, http_client=http(verify=CERTIFICATES), **options)

    @contextmanager
    def client(
        self, name: str, sdk: dict[str, Any] | None = None, **metering: Any
    ) -> Iterator[Any]:
        with self.sdk(name, **(sdk or {})) as original:
            yield allowance.meter(original, **metering)

    @asynccontextmanager
    async def aclient(
        self, name: str, sdk: dict[str, Any] | None = None, **metering: Any
    ) -> AsyncIterator[Any]:
        async with self.sdk(name, True, **(sdk or {})) as original:
            yield allowance.meter(original, **metering)

    def ask(
        self,
        name: str,
        *,
        asynchronous: bool = False,
        stream: bool = False,
        sdk: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """One whole call through a client of its own: the answer, or the events of a stream."""
        if asynchronous:
            return asyncio.run(self._aask(name, stream, sdk, options))
        with self.client(name, sdk) as client:
            answer = create(client, stream=stream, **options)
            return list(answer) if stream else answer

    async def _aask(
        self, name: str, stream: bool, sdk: dict[str, Any] | None, options: dict[str, Any]
    ) -> Any:
        async with self.aclient(name, sdk) as client:
            answer = await create(client, stream=stream, **options)
            return [event async for event in answer] if stream else answer

    def rows(self, count: int | None = None) -> list[Reservation]:
        """The ledger in order of dispatch, once no row is open and there are ``count`` of them."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            conf.store().drain()
            rows = list(Reservation.objects.using(self.using).order_by("created_at"))
            is_open = any(row.state == "reserved" and not row.deferred_id for row in rows)
            if not is_open and (count is None or len(rows) == count):
                return rows
            assert time.monotonic() < deadline, [(row.state, row.flags) for row in rows]
            time.sleep(0.01)

    def row(self) -> Reservation:
        """The only row, which is final."""
        (row,) = self.rows(1)
        return row

    def ended(self) -> list[tuple[str, list[str], int | None]]:
        """State, flags and micro-dollars of each row."""
        return [(row.state, row.flags, row.cost_micros) for row in self.rows()]

    def figures(self) -> dict[str, tuple[int, int]]:
        """(used, reserved) of the three limits for everyone."""
        with allowance.charge_to():
            found = {b.unit: (b.used, b.reserved) for b in allowance.remaining()}
        return found

    def requests(self) -> int:
        """How many requests reached the provider."""
        return len(self.provider.log())


def create(client: Any, **options: Any) -> Any:
    """A call in the words of either SDK: an answer, a stream, or a coroutine of one."""
    if isinstance(client, openai.OpenAI | openai.AsyncOpenAI):
        fixed = {"model": GPT, "messages": ASK, "max_completion_tokens": MAX_TOKENS}
        return client.chat.completions.create(**{**fixed, **options})
    fixed = {"model": CLAUDE, "messages": ASK, "max_tokens": MAX_TOKENS}
    return client.messages.create(**{**fixed, **options})


def text_of(event: Any) -> str:
    """The text that one event of a stream delivers."""
    if hasattr(event, "choices"):
        return "".join(choice.delta.content or "" for choice in event.choices)
    return getattr(getattr(event, "delta", None), "text", None) or ""


def within(condition: Callable[[], bool], seconds: float = DEADLINE_SECONDS) -> bool:
    """Does it become true in time?"""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


async def cancelled(call: Awaitable[Any], after: Callable[[], bool]) -> None:
    """Cancel a call once ``after`` holds, and wait for its end."""
    task = asyncio.ensure_future(call)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not after():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return
    raise AssertionError("the call was not cancelled")
