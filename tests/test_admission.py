"""Asking before any call is made: admit, require and remaining."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest
from asgiref.sync import markcoroutinefunction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.views import View

from project.provider import Reply
from tests.metering import GPT, Lab, create, text_of
from token_allowance import allowance
from token_allowance.attribution import NOBODY, current
from token_allowance.exceptions import (
    AllowanceExceeded,
    CapExceeded,
    SwitchEngaged,
    Unattributed,
)
from token_allowance.models import Tenant

pytestmark = pytest.mark.django_db(transaction=True)

Usage = allowance.Usage
both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
clients: dict[str, Any] = {}


@pytest.fixture
def lab():
    with Lab() as lab:
        yield lab
    clients.clear()
    assert current() is NOBODY


def spend(micros: int, **attribution: Any) -> None:
    """Use so many micro-dollars and tokens."""
    with (
        allowance.charge_to(**attribution),
        allowance.call(
            provider="openai", model=GPT, input_tokens=micros, max_output_tokens=0
        ) as made,
    ):
        made.record(Usage(micros))


def admit(asynchronous: bool, **attribution: str) -> None:
    if asynchronous:
        asyncio.run(allowance.aadmit(**attribution))
    else:
        allowance.admit(**attribution)


@both
def test_admit_refuses_once_a_budget_is_spent_and_charges_nothing(lab, asynchronous):
    lab.limit("cost", 500, tenant="*", user="*", window="day")
    who = {"tenant": "acme", "user": "u_1"}
    spend(499, **who)
    admit(asynchronous, **who)
    spend(1, **who)
    with pytest.raises(AllowanceExceeded) as caught:
        admit(asynchronous, **who)
    error = caught.value
    assert (error.reason, error.scope, error.window) == ("exhausted", "user", "day")
    assert (error.amount, error.used, error.needed, error.available) == (500, 500, 0, 0)
    assert error.code == "user_daily_budget_exceeded"
    assert 1 <= error.retry_after_seconds <= 86_400
    admit(asynchronous, tenant="acme", user="u_2")
    assert len(lab.rows()) == 2
    assert lab.figures()["cost"] == (500, 0)


def test_admit_does_not_mind_room_held_by_calls_in_flight(lab):
    lab.shrink("calls", 1)
    with allowance.call(provider="openai", model=GPT) as call:
        allowance.admit()
        call.release()


def test_a_limit_of_nothing_admits_nothing_case_c73(lab):
    limit = lab.limit("calls", 0, feature="agent", window="day")
    with pytest.raises(AllowanceExceeded) as caught:
        allowance.admit(feature="agent")
    assert caught.value.amount == 0
    allowance.admit(feature="chat")
    limit.delete()
    allowance.admit(feature="agent")


def test_no_limit_is_no_limit_case_c73(lab):
    for unit in ("cost", "tokens", "calls"):
        lab.shrink(unit, 2**53 - 1)
    spend(10**12)
    allowance.admit()


@both
def test_admit_obeys_switches(lab, asynchronous):
    allowance.engage(tenant="acme", feature="agent", reason="loop", by="ann")
    with pytest.raises(SwitchEngaged, match="loop"):
        admit(asynchronous, tenant="acme", feature="agent")
    admit(asynchronous, tenant="acme")
    allowance.disengage(tenant="acme", feature="agent", by="ann")
    admit(asynchronous, tenant="acme", feature="agent")


def test_admit_wants_to_know_who_asks(lab):
    lab.limit("calls", 5, tenant="*", user="*")
    with pytest.raises(Unattributed, match="user"):
        allowance.admit(tenant="acme")


def test_admit_takes_what_is_not_given_from_around(lab):
    lab.limit("calls", 0, tenant="acme", feature="agent")
    with allowance.charge_to(tenant="acme"), pytest.raises(AllowanceExceeded):
        allowance.admit(feature="agent")


@pytest.mark.parametrize("whose", ["settings", "tenant", "limit"])
def test_admit_refuses_nothing_that_is_only_observed(whose):
    settings = {"MODE": "observe"} if whose == "settings" else {}
    with Lab(**settings) as lab:
        mode = {"mode": "observe"} if whose == "limit" else {}
        lab.limit("calls", 0, tenant="*", **mode)
        Tenant.objects.create(key="acme", mode="observe" if whose == "tenant" else "")
        allowance.admit(tenant="acme")
        (seen,) = [b for b in allowance.remaining(tenant="acme") if b.scope == "tenant"]
        assert seen.state == "observing"


def test_a_first_seen_user_has_the_budget_of_each_case_c72(lab):
    lab.limit("cost", 500_000, tenant="*", user="*", window="day")
    who = {"tenant": "acme", "user": "never seen"}
    spend(200_000, **who)
    spend(200_000, **who)
    with pytest.raises(AllowanceExceeded) as caught:
        spend(200_000, **who)
    assert (caught.value.used, caught.value.needed) == (400_000, 200_000)
    assert [row.cost_micros for row in lab.rows()] == [200_000, 200_000]


def test_budgets_that_are_spent_stop_model_calls_and_nothing_else_case_c77(lab, admin_client):
    lab.shrink("calls", 0)
    for page in ("/admin/", "/admin/token_allowance/limit/"):
        assert admin_client.get(page).status_code == 200
    with pytest.raises(AllowanceExceeded):
        spend(1)
    lab.shrink("calls", 1)
    spend(1)


# Remaining


@both
def test_remaining_figures_and_states(lab, asynchronous):
    def remaining(**who: str) -> allowance.Remaining:
        found = (
            asyncio.run(allowance.aremaining(**who)) if asynchronous else allowance.remaining(**who)
        )
        (budget,) = [budget for budget in found if budget.scope == "user"]
        return budget

    limit = lab.limit("cost", 1_000, tenant="*", user="*", window="day")
    who = {"tenant": "acme", "user": "u_1"}
    before = dt.datetime.now(dt.UTC)
    fresh = remaining(**who)
    assert (fresh.unit, fresh.window, fresh.amount) == ("cost", "day", 1_000)
    assert (fresh.used, fresh.reserved, fresh.available, fresh.state) == (0, 0, 1_000, "ok")
    assert fresh.limit.id == limit.pk
    assert fresh.resets_at > before
    assert fresh.resets_at.time() == dt.time(0)
    states = []
    for micros in (699, 1, 199, 1, 99, 1):
        spend(micros, **who)
        states.append((remaining(**who).used, remaining(**who).state))
    assert states == [
        (699, "ok"),
        (700, "warning"),
        (899, "warning"),
        (900, "degraded"),
        (999, "degraded"),
        (1_000, "blocked"),
    ]
    limit.amount = 800
    limit.save()
    lowered = remaining(**who)
    assert (lowered.used, lowered.available, lowered.state) == (1_000, 0, "blocked")


def test_remaining_shows_what_is_held(lab):
    with allowance.call(provider="openai", model=GPT, input_tokens=9, max_output_tokens=3) as call:
        found = {b.unit: (b.used, b.reserved, b.available) for b in allowance.remaining()}
        call.release()
    assert found["cost"] == (0, 15, 100_000_000 - 15)
    assert found["tokens"][1] == 12
    assert found["calls"][1] == 1


def test_remaining_is_of_the_budgets_that_such_calls_are_counted_in(lab):
    lab.limit("calls", 7, tenant="acme")
    lab.limit("calls", 5, tenant="*")
    lab.limit("calls", 3, model=GPT)
    lab.limit("calls", 9, feature="other")

    def shown(**who: str) -> list[tuple[str, int]]:
        found = allowance.remaining(**who)
        return sorted((b.scope, b.amount) for b in found if b.unit == "calls" and b.amount < 100)

    assert shown() == []
    assert shown(tenant="acme") == [("tenant", 7)]
    assert shown(tenant="globex", model=GPT) == [("model", 3), ("tenant", 5)]
    assert lab.rows() == []


# Require


@both
def test_require_admits_charges_and_caps_a_function(lab, asynchronous):
    lab.provider.script(default=Reply(input_tokens=40, output_tokens=9))

    def steps(client) -> None:
        for _ in range(3):
            create(client)

    words = {"tenant": lambda tenant, client: tenant, "feature": "agent", "max_calls": 2}

    @allowance.require(**words)
    def view(tenant, client):
        steps(client)

    @allowance.require(**words)
    async def aview(tenant, client):
        steps(client)

    with lab.client("openai") as client, pytest.raises(CapExceeded):
        asyncio.run(aview("acme", client)) if asynchronous else view("acme", client)
    assert [(row.tenant, row.feature) for row in lab.rows(2)] == [("acme", "agent")] * 2


@both
def test_require_refuses_before_the_function_begins(lab, asynchronous):
    lab.limit("calls", 0, feature="agent")
    begun = []

    @allowance.require(feature="agent", max_cost="0.05")
    def view():
        begun.append(1)

    @allowance.require(feature="agent")
    async def aview():
        begun.append(1)

    with pytest.raises(AllowanceExceeded):
        asyncio.run(aview()) if asynchronous else view()
    assert begun == []


@allowance.require(feature="agent", max_calls=5)
def view(request: HttpRequest, number: int) -> HttpResponse:
    create(clients["sync"])
    return HttpResponse(f"{number}")


@allowance.require(feature="agent")
async def aview(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(f"{current().attribution().feature}{number}")


class Page(View):
    @allowance.require(feature="agent")
    def get(self, request: HttpRequest, number: int) -> HttpResponse:
        return HttpResponse(f"{current().attribution().feature}{number}")


@allowance.require(feature="agent", max_calls=1)
def stream(request: HttpRequest, number: int) -> StreamingHttpResponse:
    def body():
        for _ in range(number):
            yield from map(text_of, create(clients["sync"], stream=True))

    return StreamingHttpResponse(body())


@allowance.require(feature="agent", max_calls=1)
async def astream(request: HttpRequest, number: int) -> StreamingHttpResponse:
    async def body():
        for _ in range(number):
            async for event in await create(clients["async"], stream=True):
                yield text_of(event)

    return StreamingHttpResponse(body())


urlpatterns = [
    path("view/<int:number>/", view),
    path("aview/<int:number>/", aview),
    path("page/<int:number>/", Page.as_view()),
    path("stream/<int:number>/", stream),
    path("astream/<int:number>/", astream),
]


@pytest.fixture
def urls():
    with override_settings(ROOT_URLCONF=__name__):
        yield


def test_require_on_views_and_methods(lab, urls):
    with lab.client("openai") as clients["sync"]:
        assert Client().get("/view/3/").content == b"3"
    assert Client().get("/aview/3/").content == b"agent3"
    assert Client().get("/page/3/").content == b"agent3"
    assert lab.row().feature == "agent"
    lab.limit("calls", 1, feature="agent")
    for name in ("view", "aview", "page", "stream", "astream"):
        response = Client().get(f"/{name}/3/")
        assert (response.status_code, response["Content-Type"]) == (429, "application/problem+json")
    assert len(lab.rows()) == 1


def test_require_holds_for_the_steps_of_a_streamed_body(lab, urls):
    lab.provider.script(default=Reply(text=" windy" * 4))
    with lab.client("openai") as clients["sync"]:
        body = Client().get("/stream/2/").streaming_content
        with pytest.raises(CapExceeded):
            b"".join(body)

    async def read() -> bytes:
        response: Any = await AsyncClient().get("/astream/2/")
        async with lab.aclient("openai") as clients["async"]:
            return b"".join([part async for part in response.streaming_content])

    with pytest.raises(CapExceeded):
        asyncio.run(read())
    assert [row.feature for row in lab.rows(2)] == ["agent", "agent"]


def test_require_on_a_callable_that_is_marked_as_a_coroutine_function(lab):
    def marked():
        async def run() -> str:
            return current().attribution().feature

        return run()

    wrapped = allowance.require(feature="agent")(markcoroutinefunction(marked))
    assert asyncio.run(wrapped()) == "agent"
