"""Asynchronous callers: cancelled anywhere, and clients of the other kind than the view."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.http import HttpRequest, JsonResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path

from project.provider import Reply
from tests.metering import (
    ESTIMATE,
    RESERVED,
    SDKS,
    FlakyStore,
    Lab,
    cancelled,
    create,
    text_of,
)
from token_allowance import allowance
from token_allowance.estimate import text_tokens

pytestmark = pytest.mark.django_db(transaction=True)

sdks = pytest.mark.parametrize("sdk", SDKS)
FIXED = Reply(input_tokens=40, output_tokens=9)
PACED = Reply(text=" windy" * 16, chunks=4, chunk_delay_seconds=0.2, input_tokens=40)
clients: dict[str, Any] = {}  # what the views below call


@pytest.fixture
def lab():
    with Lab() as lab:
        lab.provider.script(default=FIXED)
        yield lab
    clients.clear()


def interrupted(sdk: str, text: str) -> tuple[str, list[str], int, int]:
    input_tokens = 40 if sdk == "anthropic" else ESTIMATE[sdk].input_tokens
    return "settled", ["interrupted"], input_tokens, text_tokens(text, sdk)


def outcome(lab: Lab) -> tuple[str, list[str], int, int]:
    row = lab.row()
    return row.state, row.flags, row.input_tokens, row.output_tokens


# Cancelled


@sdks
def test_a_stream_cancelled_in_the_middle_is_charged_for_what_came(lab, sdk):
    lab.provider.script([PACED])
    seen: list[str] = []

    async def read() -> None:
        async with lab.aclient(sdk) as client:
            await cancelled(consume(client), after=lambda: len(seen) == 2)

    async def consume(client) -> None:
        async for event in await create(client, stream=True):
            if text := text_of(event):
                seen.append(text)

    asyncio.run(read())
    assert outcome(lab) == interrupted(sdk, " windy" * 8)
    assert lab.figures()["calls"] == (1, 0)


@sdks
def test_a_stream_in_an_anyio_scope_that_ends_is_charged_for_what_came(lab, sdk):
    lab.provider.script([PACED])
    seen: list[str] = []

    async def read() -> None:
        async with lab.aclient(sdk) as client:
            with anyio.CancelScope() as scope:
                async for event in await create(client, stream=True):
                    if text := text_of(event):
                        seen.append(text)
                    if len(seen) == 2:
                        scope.cancel()
            assert scope.cancelled_caught

    asyncio.run(read())
    assert outcome(lab) == interrupted(sdk, " windy" * 8)


@sdks
def test_a_timeout_around_a_call_before_its_headers_is_charged_as_reserved(lab, sdk):
    lab.provider.script([Reply(delay_seconds=5)])

    async def ask() -> None:
        async with lab.aclient(sdk) as client:
            with anyio.move_on_after(10) as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(lambda: create(client))
                    while lab.requests() == 0:
                        await asyncio.sleep(0.01)
                    scope.cancel()
            assert scope.cancelled_caught

    asyncio.run(ask())
    assert lab.ended() == [("settled", ["uncertain"], RESERVED[sdk])]
    assert lab.figures()["cost"] == (RESERVED[sdk], 0)


@pytest.mark.parametrize("anyio_scope", [False, True], ids=["task", "scope"])
def test_a_call_cancelled_while_it_is_being_reserved_is_released(lab, monkeypatch, anyio_scope):
    """The store goes on in its thread; the hold it takes for nobody is given back."""
    begun, go = threading.Event(), threading.Event()
    real = FlakyStore.reserve

    def slow(self, request):
        begun.set()
        assert go.wait(10)
        return real(self, request)

    monkeypatch.setattr(FlakyStore, "reserve", slow)

    async def ask() -> None:
        async with lab.aclient("openai") as client:
            if anyio_scope:
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as group:
                        group.start_soon(lambda: create(client))
                        while not begun.is_set():
                            await asyncio.sleep(0.01)
                        scope.cancel()
            else:
                await cancelled(create(client), after=begun.is_set)
            go.set()

    asyncio.run(ask())
    assert lab.rows(1)[0].state == "released"
    assert lab.requests() == 0
    assert lab.figures() == {"cost": (0, 0), "tokens": (0, 0), "calls": (0, 0)}


def test_a_call_cancelled_at_the_moment_its_reservation_arrives_is_released(lab, monkeypatch):
    """The work is done, and the coroutine has not yet been told: nobody else would give it back."""
    real = asyncio.wrap_future

    def arriving(future, **options):
        future.exception()  # waits until the store has answered
        asyncio.current_task().cancel()
        return real(future, **options)

    async def ask() -> None:
        async with lab.aclient("openai") as client:
            monkeypatch.setattr(asyncio, "wrap_future", arriving)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.ensure_future(create(client))
            monkeypatch.undo()

    asyncio.run(ask())
    assert lab.ended() == [("released", [], None)]
    assert lab.requests() == 0


def test_many_cancelled_calls_leave_nothing_reserved_case_c46(lab):
    lab.provider.script(default=Reply(delay_seconds=5))

    async def ask() -> None:
        async with lab.aclient("openai") as client:
            tasks = [asyncio.ensure_future(create(client)) for _ in range(20)]
            await asyncio.sleep(0.2)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(ask())
    rows = lab.rows(20)
    assert {row.state for row in rows} <= {"settled", "released"}
    sent = lab.requests()
    assert sum(row.state == "settled" for row in rows) >= sent
    assert {unit: held for unit, (_, held) in lab.figures().items()} == {
        "cost": 0,
        "tokens": 0,
        "calls": 0,
    }


def test_calls_of_a_task_group_share_its_cap(lab):
    async def ask() -> None:
        async with lab.aclient("openai") as client:
            with allowance.charge_to(max_calls=3):
                calls = (create(client) for _ in range(5))
                found = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(each, allowance.CapExceeded) for each in found) == 2

    asyncio.run(ask())
    assert lab.requests() == len(lab.rows()) == 3


# Views


async def sync_client_in_async_view(request: HttpRequest) -> JsonResponse:
    answer = create(clients["sync"])
    return JsonResponse({"tokens": answer.usage.total_tokens})


async def sync_stream_in_async_view(request: HttpRequest) -> JsonResponse:
    events = list(create(clients["sync"], stream=True))
    return JsonResponse({"events": len(events)})


async def async_client_in_async_view(request: HttpRequest) -> JsonResponse:
    answer = await create(clients["async"])
    return JsonResponse({"tokens": answer.usage.total_tokens})


def async_client_in_sync_view(request: HttpRequest) -> JsonResponse:
    async def ask() -> Any:
        async with clients["lab"].aclient("openai") as client:
            return (await create(client)).usage.total_tokens

    return JsonResponse({"tokens": async_to_sync(ask)()})


def capped_view(request: HttpRequest) -> JsonResponse:
    for _ in range(3):
        create(clients["sync"])
    return JsonResponse({})


def streaming_view(request: HttpRequest) -> StreamingHttpResponse:
    def body():
        for event in create(clients["sync"], stream=True):
            yield text_of(event)

    return StreamingHttpResponse(body())


async def call_in_async_view(request: HttpRequest) -> JsonResponse:
    with allowance.call(provider="openai", model="gpt-5-mini", input_tokens=9) as call:
        call.record(allowance.Usage(9, 2))
    left = allowance.remaining()
    allowance.admit()
    return JsonResponse({"left": len(left)})


urlpatterns = [
    path("sync-client/", sync_client_in_async_view),
    path("sync-stream/", sync_stream_in_async_view),
    path("async-client/", async_client_in_async_view),
    path("async-in-sync/", async_client_in_sync_view),
    path("capped/", capped_view),
    path("streaming/", streaming_view),
    path("call/", call_in_async_view),
]


@pytest.fixture
def user():
    with override_settings(ROOT_URLCONF=__name__):
        yield get_user_model().objects.create_user("ann", pk=42)


def test_a_sync_client_in_an_async_view(lab, user):
    """It asks on the loop's own thread, where Django allows no query; the user is found anyway."""

    async def get() -> None:
        browser = AsyncClient()
        await browser.aforce_login(user)
        assert (await browser.get("/sync-client/")).json() == {"tokens": 49}
        assert (await browser.get("/sync-stream/")).status_code == 200
        assert (await browser.get("/call/")).json() == {"left": 3}

    with lab.client("openai", feature="chat") as clients["sync"]:
        async_to_sync(get)()
    rows = lab.rows(3)
    assert [(row.user, row.feature) for row in rows] == [("42", "chat"), ("42", "chat"), ("42", "")]
    assert [row.cost_micros for row in rows] == [58, 58, 13]


def test_an_async_client_in_an_async_view(lab, user):
    async def get() -> None:
        browser = AsyncClient()
        await browser.aforce_login(user)
        async with lab.aclient("openai") as clients["async"]:
            assert (await browser.get("/async-client/")).json() == {"tokens": 49}

    async_to_sync(get)()
    assert (lab.row().user, lab.row().cost_micros) == ("42", 58)


def test_an_async_client_in_a_sync_view(lab, user):
    clients["lab"] = lab
    browser = Client()
    browser.force_login(user)
    assert browser.get("/async-in-sync/").json() == {"tokens": 49}
    assert (lab.row().user, lab.row().cost_micros) == ("42", 58)


def test_a_cap_of_the_client_holds_for_each_request(lab, user):
    with lab.client("openai", max_calls=3) as clients["sync"]:
        assert [Client().get("/capped/").status_code for _ in range(2)] == [200, 200]
    with lab.client("openai", max_calls=2) as clients["sync"]:
        assert Client().get("/capped/").status_code == 429
    assert lab.requests() == len(lab.rows()) == 8


def test_a_streaming_body_is_charged_to_the_user_of_its_request(lab, user):
    browser = Client()
    browser.force_login(user)
    with lab.client("openai") as clients["sync"]:
        assert b"".join(browser.get("/streaming/").streaming_content)
    assert (lab.row().user, lab.row().flags) == ("42", [])
