"""Which budgets apply, whichever way a call comes, and what is no amount (cases of kind G, C81)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest
from celery import shared_task
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path, reverse
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from tests.metering import ASK, GPT, KEY, MAX_TOKENS, Lab
from tests.test_admin import limit_form
from tests.urls_http import HeaderToken
from token_allowance import allowance
from token_allowance.exceptions import AllowanceExceeded, SwitchEngaged, UnmeteredEndpoint
from token_allowance.models import Limit, Reservation
from token_allowance.testing import spend

pytestmark = pytest.mark.django_db(databases=["default"], transaction=True)


@pytest.fixture
def lab() -> Iterator[Lab]:
    urls = override_settings(ROOT_URLCONF="tests.test_cases_scope")
    with urls, Lab(ATTRIBUTION="tests.test_cases_scope.who_pays") as lab:
        yield lab


def who_pays(request: HttpRequest) -> dict[str, str]:
    return {"tenant": "acme"}


def eight_cents() -> None:
    """A call that is expected to cost $0.08."""
    with allowance.call(provider="openai", model=GPT, max_output_tokens=40_000) as call:
        call.release()


def three_dollars(**who: str) -> None:
    with allowance.call(provider="openai", model=GPT, input_tokens=3_000_000, max_output_tokens=0,
                        **who) as call:  # fmt: skip
        call.release()


def ask(request: HttpRequest) -> HttpResponse:
    eight_cents()
    return HttpResponse("asked")


class Ask(APIView):
    authentication_classes = [HeaderToken]
    permission_classes: list[type] = []

    def get(self, request: Request) -> Response:
        eight_cents()
        return Response("asked")


@shared_task
@allowance.charge_to(tenant="acme", user="42")
def task() -> None:
    eight_cents()


urlpatterns = [path("ask/", ask), path("api/ask/", Ask.as_view())]


def in_session() -> dict[str, Any]:
    client = Client()
    client.force_login(get_user_model().objects.get(pk=42))
    return refusal(client.get("/ask/", headers={"accept": "application/json"}))


def by_token() -> dict[str, Any]:
    return refusal(Client().get("/api/ask/", headers={"authorization": "Bearer ann"}))


def in_task() -> dict[str, Any]:
    with pytest.raises(AllowanceExceeded) as caught:
        task.apply(throw=True)
    return allowance.problem(caught.value)


def refusal(response: Any) -> dict[str, Any]:
    assert response.status_code == 429
    found: dict[str, Any] = response.json()
    return found


@pytest.mark.parametrize("way", [in_session, by_token, in_task])
def test_c71_the_users_budget_holds_whichever_way_the_call_comes(lab, way):
    get_user_model().objects.create_user("ann", pk=42)
    lab.limit("cost", 1_000_000, tenant="*", user="*", window="day")
    lab.limit("cost", 100_000_000, tenant="*", window="day")
    spend("0.95", tenant="acme", user="42")
    spend("2.05", tenant="acme", user="other")
    before = lab.figures()
    body = way()
    assert (body["scope"], body["window"], body["code"]) == (
        "user",
        "day",
        "user_daily_budget_exceeded",
    )
    assert (body["available"], body["needed"]) == ("0.05", "0.08")
    left = {b.scope: (b.used, b.reserved) for b in allowance.remaining(tenant="acme", user="42")
            if b.window == "day"}  # fmt: skip
    assert left == {"user": (950_000, 0), "tenant": (3_000_000, 0)}
    assert lab.figures() == before


@pytest.mark.parametrize("amount", [-1, None, "NaN", "Infinity", "1e400", 2**53])
def test_c73_what_is_no_amount_is_no_limit(amount):
    with pytest.raises(ValidationError, match="amount"):
        Limit(tenant="*", amount=amount).full_clean()


def test_c73_a_negative_charge_buys_no_room(lab):
    lab.limit("cost", 1_000_000, tenant="acme", window="day")
    with allowance.call(provider="openai", model=GPT, tenant="acme", max_output_tokens=1) as call:
        with pytest.raises(ValueError, match="input_tokens"):
            call.record(allowance.Usage(-5))
        call.release()
    with pytest.raises(ValueError, match="negative"):
        spend("-5", tenant="acme")
    (budget,) = [b for b in allowance.remaining(tenant="acme") if b.scope == "tenant"]
    assert (budget.used, budget.reserved, budget.available) == (0, 0, 1_000_000)
    with pytest.raises(AllowanceExceeded) as caught:
        three_dollars(tenant="acme")
    assert (caught.value.needed, caught.value.amount) == (3_000_000, 1_000_000)


def test_c73_a_misspelt_word_is_refused():
    who: dict[str, Any] = {"tenent": "acme"}
    with pytest.raises(TypeError, match="amuont"):
        Limit(tenant="*", **{"amuont": 1})
    for ask in (allowance.charge_to, allowance.remaining, allowance.admit):
        with pytest.raises(TypeError, match="tenent"):
            ask(**who)
    with pytest.raises(TypeError, match="tenent"):
        allowance.call(provider="openai", model=GPT, **who)


CHAT: dict[str, Any] = {"model": GPT, "messages": ASK, "max_completion_tokens": MAX_TOKENS}
COUNTS = {"prompt_tokens": 40, "completion_tokens": 9, "total_tokens": 49}
PARTS = {"input_tokens": 40, "output_tokens": 9, "total_tokens": 49}
ROUTES: dict[str, Callable[[Any], Any]] = {
    "chat": lambda c: c.chat.completions.create(**CHAT),
    "completions": lambda c: c.completions.create(model=GPT, prompt="x", max_tokens=9),
    "responses": lambda c: c.responses.create(model=GPT, input="x", max_output_tokens=9),
    "embeddings": lambda c: c.embeddings.create(model=GPT, input="x", encoding_format="float"),
    "images": lambda c: c.images.generate(model=GPT, prompt="x"),
    "transcriptions": lambda c: c.audio.transcriptions.create(model=GPT, file=b"RIFF"),
    "post": lambda c: c.post("/chat/completions", cast_to=httpx2.Response, body=CHAT),
    "raw": lambda c: c.chat.completions.with_raw_response.create(**CHAT).parse(),
    "streaming": lambda c: streaming(c),
    "copy": lambda c: c.copy().chat.completions.create(**CHAT),
    "options": lambda c: c.with_options(timeout=3).chat.completions.create(**CHAT),
}


def streaming(client: Any) -> None:
    with client.chat.completions.with_streaming_response.create(**CHAT) as response:
        response.read()


def test_c74_an_asynchronous_client_reserves_and_settles_once_a_call(lab):
    async def work() -> None:
        async with lab.aclient("openai") as client:
            await client.chat.completions.create(**CHAT)
            await client.with_options(timeout=3).chat.completions.create(**CHAT)
            await client.responses.create(model=GPT, input="x", max_output_tokens=9)
            async with client.chat.completions.with_streaming_response.create(**CHAT) as response:
                await response.read()

    asyncio.run(work())
    assert [row.state for row in lab.rows(4)] == ["settled"] * 4
    assert lab.requests() == 4


@pytest.mark.parametrize("route", list(ROUTES))
def test_c74_every_route_of_a_client_reserves_and_settles_once(lab, route):
    sent = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        ((state, reserved),) = Reservation.objects.values_list("state", "reserved_tokens")
        sent.append((state, reserved > 0))
        parts = not request.url.path.endswith(("completions", "embeddings"))
        body = {"id": "r", "model": GPT, "usage": PARTS if parts else COUNTS, "status": "completed"}
        content = json.dumps({**body, "choices": [], "data": [], "output": [], "text": ""})
        return httpx2.Response(
            200, content=content.encode(), headers={"content-type": "application/json"}
        )

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
        client = openai.OpenAI(api_key=KEY, http_client=http, max_retries=0)
        ROUTES[route](allowance.meter(client))
    assert sent == [("reserved", True)]
    row = lab.row()
    assert (row.state, row.input_tokens) == ("settled", 40)


def test_c74_a_route_that_cannot_be_metered_is_not_sent(lab):
    with lab.client("openai") as client, pytest.raises(UnmeteredEndpoint):
        client.batches.create(
            completion_window="24h", endpoint="/v1/chat/completions", input_file_id="f"
        )
    assert (lab.requests(), lab.rows()) == (0, [])


@override_settings(ROOT_URLCONF="project.urls")
def test_c77_who_can_raise_a_spent_budget_is_not_locked_out(admin_client):
    """All of a global budget is spent: the admin changes it, and a switch can be engaged."""
    with Lab() as lab:
        everyone = lab.limit("calls", 1, window="day")
        spend(1, unit="calls")
        with pytest.raises(AllowanceExceeded):
            three_dollars()
        page = reverse("admin:token_allowance_limit_change", args=[everyone.pk])
        assert admin_client.get(page).status_code == 200
        allowance.engage(feature="agent", reason="runaway loop", by="ops")
        with pytest.raises(SwitchEngaged):
            allowance.admit(feature="agent")
        words = dict.fromkeys((f"{d}_0" for d in ("tenant", "user", "session", "feature", "model")),
                              "together")  # fmt: skip
        given = limit_form(**words, amount="100", unit="calls")
        assert admin_client.post(page, given).status_code == 302
        three_dollars()


def test_c81_sums_of_tokens_pass_two_to_the_power_of_thirty_two(lab, admin_client):
    for unit in ("cost", "tokens"):
        lab.shrink(unit, 2**53 - 1)
    for _ in range(2):
        with allowance.call(provider="openai", model=GPT, max_output_tokens=1) as call:
            call.record(allowance.Usage(1_500_000_000))
    assert lab.figures()["tokens"] == (3_000_000_000, 0)
    assert Reservation.objects.aggregate(all=Sum("input_tokens"))["all"] == 3_000_000_000
    (budget,) = [b for b in allowance.remaining() if b.unit == "tokens"]
    assert json.loads(json.dumps(budget.used)) == 3_000_000_000
    with override_settings(ROOT_URLCONF="project.urls"):
        listed = admin_client.get(reverse("admin:token_allowance_limit_changelist")).text
    assert "3,000,000,000" in listed
