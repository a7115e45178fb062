"""A call that a switch stops is tried once: by its caller's SDK, and by whoever calls us."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import anthropic
import openai
import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from tests.metering import CLAUDE, SDKS, Lab, create
from token_allowance import allowance
from token_allowance.exceptions import SwitchEngaged

pytestmark = pytest.mark.django_db(transaction=True)

sdks = pytest.mark.parametrize("sdk", SDKS)
RETRIES = {"openai": openai.DEFAULT_MAX_RETRIES, "anthropic": anthropic.DEFAULT_MAX_RETRIES}


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as lab:
        allowance.engage("feature:agent", reason="spend", by="ops", minutes=30)
        yield lab


def counting(client: Any) -> list[str]:
    """The attempts that the SDK makes, each by its path."""
    attempts: list[str] = []

    def sent(request: Any) -> None:
        attempts.append(request.url.path)

    async def asent(request: Any) -> None:
        sent(request)

    asynchronous = hasattr(client, "__aenter__")
    client._client.event_hooks = {"request": [asent if asynchronous else sent]}
    return attempts


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@sdks
def test_an_sdk_with_its_default_retries_makes_one_attempt_and_sends_nothing(
    lab: Lab, sdk: str, asynchronous: bool, stream: bool
) -> None:
    default = {"max_retries": RETRIES[sdk]}
    assert default["max_retries"] >= 2

    async def ask() -> list[str]:
        async with lab.aclient(sdk, default, feature="agent") as client:
            attempts = counting(client)
            with pytest.raises(SwitchEngaged) as caught:
                await create(client, stream=stream)
            assert caught.value.reason == "spend"
            return attempts

    if asynchronous:
        attempts = asyncio.run(ask())
    else:
        with lab.client(sdk, default, feature="agent") as client:
            attempts = counting(client)
            with pytest.raises(SwitchEngaged, match="spend"):
                create(client, stream=stream)
    assert len(attempts) == 1
    assert lab.requests() == 0
    assert lab.rows() == []


@sdks
def test_an_sdk_that_calls_our_service_makes_one_attempt(
    lab: Lab, sdk: str, settings: Any, live_server: Any
) -> None:
    """Both SDKs retry every 503; ours says that it is no use."""
    asked: list[str] = []

    @csrf_exempt
    def model_call(request: HttpRequest, **_: Any) -> HttpResponse:
        asked.append(request.path)
        with lab.client(sdk, feature="agent") as client:
            create(client)
        raise AssertionError("a switch is engaged")

    urls = ModuleType("urls_of_a_service")
    urls.__dict__["urlpatterns"] = [path("<path:any>", model_call)]
    settings.ROOT_URLCONF = urls
    default: dict[str, Any] = {"base_url": f"{live_server.url}/v1", "max_retries": RETRIES[sdk]}
    with (
        lab.sdk(sdk, **default) as outer,
        pytest.raises(Exception, match=r"503|switch_engaged") as error,
    ):
        create(outer)
    response = getattr(error.value, "response", None)
    assert response is not None
    assert (response.status_code, response.json()["code"]) == (503, "switch_engaged")
    assert response.headers["x-should-retry"] == "false"
    assert 1700 < int(response.headers["retry-after"]) <= 1800
    assert len(asked) == 1
    assert lab.requests() == 0


def test_an_agent_loop_stops_before_its_next_call_c96() -> None:
    with Lab() as lab, lab.client("anthropic", feature="agent") as client:
        done = 0

        def loop() -> None:
            nonlocal done
            for _ in range(10):
                create(client, model=CLAUDE)
                done += 1
                if done == 3:
                    allowance.engage("feature:agent", reason="loop", by="ops")

        with pytest.raises(SwitchEngaged):
            loop()
        assert (done, lab.requests()) == (3, 3)
        assert [row.state for row in lab.rows()] == ["settled"] * 3
