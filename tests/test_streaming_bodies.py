from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterator

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.core.handlers.asgi import ASGIHandler
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, override_settings

from tests.urls_http import events, held, raised, spent
from token_allowance.attribution import NOBODY, Charge, current
from token_allowance.bodies import AsyncBody, Body, charged
from token_allowance.exceptions import AllowanceExceeded

CHARGE = Charge(stated=(("user", "42"),))


@pytest.fixture(autouse=True)
def urls() -> Iterator[None]:
    with override_settings(ROOT_URLCONF="tests.urls_http"):
        yield
    raised.clear()
    events.clear()
    held.clear()
    assert current() is NOBODY


@pytest.fixture
def user(transactional_db):
    return get_user_model().objects.create_user("ann", pk=42)


def users() -> Iterator[str]:
    try:
        while True:
            yield current().attribution().user
    finally:
        events.append(f"closed {current().attribution().user}")


async def ausers() -> AsyncIterator[str]:
    try:
        while True:
            yield current().attribution().user
    finally:
        events.append(f"closed {current().attribution().user}")


def test_each_step_of_a_view_runs_under_its_request(user):
    client = Client()
    client.force_login(user)
    response = client.get("/stream/")
    assert current() is NOBODY
    assert response.getvalue() == b"42;inner;inner;42;"
    assert events == ["closed 42"]


def test_a_refusal_in_a_stream_is_raised_into_it_and_passes_on(user):
    client = Client()
    client.force_login(user)
    response = client.get("/stream/")
    raised.append(spent())
    assert response.status_code == 200
    with pytest.raises(AllowanceExceeded):
        response.getvalue()
    assert events == ["refused user_daily_budget_exceeded", "closed 42"]


async def consumed(client, path):
    response = await client.get(path)
    assert current() is NOBODY
    parts = [part async for part in response.streaming_content]
    assert current() is NOBODY
    return b"".join(parts)


def test_each_step_of_an_async_view_runs_under_its_request(user):
    client = AsyncClient()
    client.force_login(user)
    assert async_to_sync(consumed)(client, "/astream/") == b"420;421;422;"
    assert events == ["closed 42"]


def test_a_refusal_in_an_async_stream(user):
    client = AsyncClient()
    client.force_login(user)
    raised.append(spent())
    with pytest.raises(AllowanceExceeded):
        async_to_sync(consumed)(client, "/astream/")
    assert events == ["closed 42"]


def test_closing_ends_the_view_under_its_charge():
    response = charged(StreamingHttpResponse(users()), CHARGE)
    body = iter(response)
    assert (next(body), next(body)) == (b"42", b"42")
    response.close()
    assert events == ["closed 42"]


def test_the_consumer_of_a_stream_is_not_charged():
    body = Body(users(), CHARGE)
    assert next(body) == "42"
    assert current() is NOBODY


@pytest.mark.parametrize("content", [["a", "b"], ("a", "b"), map(str.lower, "AB"), iter("ab")])
def test_plain_iterators_pass_through(content):
    response = charged(StreamingHttpResponse(content), CHARGE)
    assert response.getvalue() == b"ab"
    response.close()


@pytest.mark.parametrize(
    "response", [HttpResponse("a"), FileResponse(io.BytesIO(b"a")), FileResponse(iter([b"a"]))]
)
def test_files_and_whole_bodies_are_left_alone(response):
    before = getattr(response, "_iterator", None)
    assert charged(response, CHARGE) is response
    assert getattr(response, "_iterator", None) is before
    response.close()


def test_an_async_body_is_closed_from_the_loop_and_from_a_thread():
    async def run() -> None:
        one, two = AsyncBody(ausers(), CHARGE), AsyncBody(ausers(), CHARGE)
        assert [await anext(one), await anext(two)] == ["42", "42"]
        one.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert events == ["closed 42"]
        await asyncio.to_thread(two.close)
        assert events == ["closed 42"] * 2
        two.close()

    asyncio.run(run())
    assert events == ["closed 42"] * 2


def test_an_async_body_that_nobody_began_is_closed():
    async def run() -> None:
        response = charged(StreamingHttpResponse(ausers()), CHARGE)
        await asyncio.to_thread(response.close)

    asyncio.run(run())
    assert events == []


def test_a_client_that_hangs_up_ends_the_stream_at_once(user):
    """It waits at its yield then, and is not left to the garbage collector."""

    async def run() -> None:
        asked, began = False, asyncio.Event()

        async def receive() -> dict[str, object]:
            nonlocal asked
            if not asked:
                asked = True
                return {"type": "http.request", "body": b"", "more_body": False}
            await began.wait()
            return {"type": "http.disconnect"}

        async def send(message) -> None:
            if message.get("body"):
                began.set()
                await asyncio.Event().wait()

        scope = dict(AsyncRequestFactory().get("/astream/").scope)
        await asyncio.wait_for(ASGIHandler()(scope, receive, send), 10)
        assert events == ["closed "]

    async_to_sync(run)()


def test_two_streams_do_not_mix():
    one = Body(users(), CHARGE)
    two = Body(users(), Charge(stated=(("user", "7"),)))
    assert [next(one), next(two), next(one), next(two)] == ["42", "7", "42", "7"]
    one.close()
    two.close()
    assert events == ["closed 42", "closed 7"]
