"""The story the app was made for: half a dollar a day, and two calls at once for the last cents."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.urls import path
from openai import OpenAI

from project.provider import Provider, Reply
from token_allowance import allowance
from token_allowance.models import Counter, Limit, Price, Reservation

MODEL = "gpt-5-mini"
ZONE = ZoneInfo("America/New_York")
# Half past one, half an hour before this zone's clocks jump: the day has 23 hours.
NOW = dt.datetime(2026, 3, 8, 1, 30, tzinfo=ZONE)
SECONDS_TO_MIDNIGHT = 77_400
clients: list[Any] = []


def ask(request: HttpRequest) -> HttpResponse:
    """A view as anybody would write it: it knows nothing of budgets."""
    answer = clients[0].chat.completions.create(
        model=MODEL,
        max_tokens=int(request.GET["tokens"]),
        messages=[{"role": "user", "content": "hello"}],
    )
    return HttpResponse(answer.choices[0].message.content)


urlpatterns = [path("ask", ask)]


@pytest.fixture
def provider(monkeypatch):
    with Provider() as provider, OpenAI(api_key="any", base_url=provider.openai_url) as client:
        monkeypatch.setattr(f"{__name__}.clients", [allowance.meter(client, feature="chat")])
        yield provider


@pytest.fixture
def cookies(client, transactional_db):
    client.force_login(User.objects.create_user("ada"))
    return "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())


@pytest.mark.urls("tests.test_seed_story")
@pytest.mark.parametrize("delay_seconds", [0, 0.3], ids=["in turn or at once", "surely at once"])
def test_of_two_calls_for_the_last_cents_one_is_refused(
    provider, live_server, cookies, settings, monkeypatch, delay_seconds
):
    settings.TOKEN_ALLOWANCE = {"TIME_ZONE": ZONE.key}
    monkeypatch.setattr("django.utils.timezone.now", lambda: NOW.astimezone(dt.UTC))
    Price.objects.create(provider="openai", model=MODEL, input_mtok=0, output_mtok=4)
    Limit.objects.create(user="*", window="day", unit="cost", amount=500_000)

    def get(tokens: int) -> httpx.Response:
        url = f"{live_server.url}/ask?tokens={tokens}"
        return httpx.get(url, headers={"Cookie": cookies, "X-Request-ID": f"r{tokens}"})

    provider.script([Reply(output_tokens=100_000)])
    assert get(100_000).status_code == 200
    assert counters() == [(400_000, 0)]

    provider.script(default=Reply(output_tokens=20_000, delay_seconds=delay_seconds))
    with ThreadPoolExecutor(2) as threads:
        answers = sorted(threads.map(get, [20_000] * 2), key=lambda answer: answer.status_code)

    assert [answer.status_code for answer in answers] == [200, 429]
    refused = answers[1]
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.headers["Retry-After"] == str(SECONDS_TO_MIDNIGHT)
    assert refused.headers["x-should-retry"] == "false"
    problem = refused.json()
    assert problem["title"] == "Token budget exceeded"
    assert problem["status"] == 429
    assert "user daily budget exceeded" in problem["detail"]
    assert problem["resets_at"] == "2026-03-09T04:00:00Z"
    assert (problem["limit"], problem["needed"]) == ("0.50", "0.08")
    assert problem["trace_id"] == "r20000"
    assert provider.totals().received == 2
    assert counters() == [(480_000, 0)]
    rows = Reservation.objects.order_by("id").values_list("state", "cost_micros", "user", "feature")
    user = str(User.objects.get().pk)
    assert list(rows) == [
        ("settled", 400_000, user, "chat"),
        ("settled", 80_000, user, "chat"),
    ]


def counters() -> list[tuple[int, int]]:
    return list(Counter.objects.values_list("used", "reserved"))
