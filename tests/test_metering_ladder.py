"""The ladder end to end: what reaches the provider, what the caller sees, what the ledger keeps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from django.test import override_settings

from project.provider import ModelRequest, Reply
from tests.metering import ASK, CLAUDE, GPT, KEY, MAX_TOKENS, Lab
from token_allowance import allowance, metrics
from token_allowance.exceptions import AllowanceExceeded
from token_allowance.models import DegradeRule, Limit, Reservation
from token_allowance.testing import spend
from token_allowance.usage import Usage

pytestmark = pytest.mark.django_db(transaction=True)

AMOUNT = 10_000  # tokens; a call of the tests needs fewer than 200
LEVEL = 9_000  # 90 %
SMALL = {GPT: "gpt-5-nano", CLAUDE: "claude-haiku-5", "gemini-x": "gemini-x-lite",
         "llama3.2": "llama3.2:1b"}  # fmt: skip
PROVIDERS = {GPT: "openai", CLAUDE: "anthropic", "gemini-x": "google", "llama3.2": "ollama"}
SHORT = 40
DEGRADED = "x-token-allowance-degraded"
MODEL = "x-token-allowance-model"


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as lab:
        for big, small in SMALL.items():
            if big not in (GPT, CLAUDE):
                lab.price(PROVIDERS[big], big, 1, 2)
            lab.price(PROVIDERS[big], small, 1, 1)
            DegradeRule.objects.create(from_model=big, to_model=small, max_output_tokens=SHORT)
        lab.limit("tokens", AMOUNT, user="u")
        lab.provider.script([], default=Reply(text="Mild.", input_tokens=20, output_tokens=5))
        yield lab


def at(tokens: int) -> None:
    """So much of the user's budget is used."""
    spend(tokens, unit="tokens", user="u")


def sent(lab: Lab) -> list[tuple[str, int | None]]:
    """Model and maximum of each request that the provider received."""
    return [(entry.model, entry.max_output_tokens) for entry in lab.provider.log()]


def last(lab: Lab, requests: int = 1) -> Reservation:
    """The row of the last call."""
    assert lab.requests() == requests
    return max(lab.rows(), key=lambda row: row.created_at)


def asked(row: Reservation) -> tuple[str, str, list[str]]:
    return row.requested_model, row.model, row.flags


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("sdk", "model"), [("openai", GPT), ("anthropic", CLAUDE)])
@pytest.mark.parametrize(("used", "degrades"), [(LEVEL - 1, False), (LEVEL, True)])
def test_the_level_is_exact(lab, sdk, model, asynchronous, stream, used, degrades):
    at(used)
    with allowance.charge_to(user="u"):
        answer = lab.ask(sdk, asynchronous=asynchronous, stream=stream)
    served = SMALL[model] if degrades else model
    assert sent(lab) == [(served, SHORT if degrades else MAX_TOKENS)]
    row = last(lab)
    assert asked(row) == (model, served, ["degraded"] if degrades else [])
    rates = (1, 1) if degrades else {"openai": (1, 2), "anthropic": (3, 15)}[sdk]
    assert row.cost_micros == 20 * rates[0] + 5 * rates[1]
    assert row.reserved_tokens - row.output_tokens > 0
    if stream:  # the usage that we asked for ourselves stays hidden
        assert not any(getattr(event, "usage", None) for event in answer if sdk == "openai")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_used_up_budget_refuses_as_before(lab, asynchronous):
    at(AMOUNT)
    with pytest.raises(AllowanceExceeded), allowance.charge_to(user="u"):
        lab.ask("openai", asynchronous=asynchronous)
    assert lab.requests() == 0


@pytest.mark.parametrize(
    ("used", "served"), [(LEVEL, True), (AMOUNT, True), (11_800, True), (11_990, False)]
)
def test_a_hard_stop_above_serves_cheaply_up_to_it(lab, used, served):
    Limit.objects.filter(user="u").update(hard_stop_percent=120)
    at(used)
    with allowance.charge_to(user="u"):
        if served:
            lab.ask("openai")
        else:
            with pytest.raises(AllowanceExceeded):
                lab.ask("openai")
    assert sent(lab) == ([(SMALL[GPT], SHORT)] if served else [])


def test_the_whole_climb(lab):
    """Every call as big as the next: full, then cheap, then none."""
    Limit.objects.filter(user="u").update(amount=1_000)
    lab.provider.script(default=Reply(input_tokens=60, output_tokens=40))
    outcomes = []
    with allowance.charge_to(user="u"), lab.client("openai") as client:
        for _ in range(11):
            try:
                answer = client.chat.completions.with_raw_response.create(
                    model=GPT, messages=ASK, max_completion_tokens=20
                )
                outcomes.append(answer.headers.get(MODEL, "full"))
            except AllowanceExceeded:
                outcomes.append("refused")
    assert outcomes == ["full"] * 9 + [SMALL[GPT], "refused"]
    assert [model for model, _ in sent(lab)] == [GPT] * 9 + [SMALL[GPT]]


def test_raising_the_limit_is_in_force_at_the_very_next_call(lab):
    at(LEVEL)
    with allowance.charge_to(user="u"), lab.client("openai") as client:
        for amount in (AMOUNT, 2 * AMOUNT, AMOUNT):
            Limit.objects.filter(user="u").update(amount=amount)
            client.chat.completions.create(model=GPT, messages=ASK, max_completion_tokens=100)
    assert [model for model, _ in sent(lab)] == [SMALL[GPT], GPT, SMALL[GPT]]


def test_a_rule_is_in_force_at_the_very_next_call(lab):
    at(LEVEL)
    with allowance.charge_to(user="u", feature="chat"):
        lab.ask("openai")
        DegradeRule.objects.create(from_model="*", feature="chat", max_output_tokens=7)
        lab.ask("openai")
        DegradeRule.objects.update(is_active=False)
        lab.ask("openai")
    assert sent(lab) == [(SMALL[GPT], SHORT), (GPT, 7), (GPT, MAX_TOKENS)]
    # With no rule at all there is no ladder, and nothing that was not done.
    assert [row.flags for row in lab.rows() if row.user == "u"][-3:] == [
        ["degraded"],
        ["degraded"],
        [],
    ]


def test_the_caller_sees_it_in_the_answers_headers(lab):
    with allowance.charge_to(user="u"), lab.client("openai") as client:
        create = client.chat.completions.with_raw_response.create
        full = create(model=GPT, messages=ASK, max_completion_tokens=100)
        at(LEVEL)
        cheap = create(model=GPT, messages=ASK, max_completion_tokens=100)
    assert (full.headers.get(MODEL), full.headers.get(DEGRADED)) == (None, None)
    assert (cheap.headers.get(MODEL), cheap.headers.get(DEGRADED)) == (SMALL[GPT], "true")
    assert cheap.parse().model == SMALL[GPT]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_call_by_hand_is_told_what_to_ask_for(lab, asynchronous):
    call = allowance.call(
        provider="openai", model=GPT, input_tokens=20, max_output_tokens=100, user="u"
    )
    at(LEVEL)
    assert (call.model, call.max_output_tokens) == (GPT, 100)

    async def within() -> None:
        async with call:
            call.record(Usage(20, 5))

    if asynchronous:
        asyncio.run(within())
    else:
        with call:
            call.record(Usage(20, 5))
    assert (call.model, call.max_output_tokens) == (SMALL[GPT], SHORT)
    row = last(lab, requests=0)
    assert asked(row) == (GPT, SMALL[GPT], ["degraded"])
    assert row.cost_micros == 25


def test_a_repeated_call_is_served_as_the_first_one(lab):
    at(LEVEL)
    for _ in range(2):
        call = allowance.call(
            provider="openai", model=GPT, input_tokens=20, user="u", idempotency_key="job-7"
        )
        with call:
            assert call.model == SMALL[GPT]
            call.record(Usage(20, 5))
    assert asked(last(lab, requests=0)) == (GPT, SMALL[GPT], ["degraded"])


def test_vectors_made_by_hand_keep_their_model(lab):
    at(LEVEL)
    with allowance.call(
        provider="openai", model=GPT, input_tokens=20, max_output_tokens=0, user="u"
    ) as call:
        assert call.model == GPT
        call.record(Usage(20))
    assert asked(last(lab, requests=0)) == (GPT, GPT, ["not_degraded"])


def test_a_deferred_call_is_settled_at_the_price_of_what_served_it(lab):
    at(LEVEL)
    with allowance.call(
        provider="openai", model=GPT, input_tokens=20, max_output_tokens=100, user="u"
    ) as call:
        call.defer("batch_1")
    allowance.settle_deferred("batch_1", Usage(20, 30))
    row = last(lab, requests=0)
    assert asked(row) == (GPT, SMALL[GPT], ["degraded"])
    assert row.cost_micros == 20 + 30


RESPONSES = {"model": GPT, "input": "hi", "previous_response_id": "resp_0"}
GEMINI = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
OLLAMA = {"model": "llama3.2", "messages": ASK, "options": {"num_predict": 100, "seed": 1}}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "model", "kept"),
    [
        ("/v1/chat/completions", {"model": GPT, "messages": ASK}, GPT, {"messages": ASK}),
        ("/v1/chat/completions", {"model": GPT, "messages": ASK, "max_tokens": 100}, GPT, {}),
        ("/v1/chat/completions", {"model": GPT, "messages": ASK, "stream": True}, GPT,
         {"stream_options": {"include_usage": True}}),
        ("/v1/responses", {**RESPONSES, "max_output_tokens": 100}, GPT,
         {"previous_response_id": "resp_0"}),
        ("/v1/responses", {**RESPONSES, "stream": True}, GPT, {"stream": True}),
        ("/v1/messages", {"model": CLAUDE, "messages": ASK, "max_tokens": 100}, CLAUDE, {}),
        ("/v1beta/models/gemini-x:generateContent", GEMINI, "gemini-x",
         {"generationConfig": {"maxOutputTokens": SHORT}}),
        ("/v1beta/models/gemini-x:streamGenerateContent?alt=sse", GEMINI, "gemini-x", {}),
        ("/api/chat", OLLAMA, "llama3.2", {"options": {"num_predict": SHORT, "seed": 1}}),
        ("/api/generate", {"model": "llama3.2", "prompt": "hi"}, "llama3.2", {"prompt": "hi"}),
    ],
)  # fmt: skip
def test_each_api_is_asked_for_less(lab, path, body, model, kept, asynchronous):
    bodies: list[dict[str, Any]] = []

    def note(request: ModelRequest) -> None:
        bodies.append(request.body)

    lab.provider.script(note, default=Reply(text="Mild.", input_tokens=20, output_tokens=5))
    Limit.objects.filter(user="u").update(amount=100 * AMOUNT)  # an unknown context is large
    at(100 * LEVEL)
    answer = post(lab, path, body, provider=PROVIDERS[model], asynchronous=asynchronous)
    assert answer.status_code == 200
    assert (answer.headers[MODEL], answer.headers[DEGRADED]) == (SMALL[model], "true")
    assert sent(lab) == [(SMALL[model], SHORT)]
    assert {name: bodies[0].get(name) for name in kept} == kept
    assert "max_tokens" not in bodies[0] or "max_completion_tokens" not in bodies[0]
    row = last(lab)
    assert (row.requested_model, row.model) == (model, SMALL[model])
    assert [flag for flag in row.flags if flag != "context_unknown"] == ["degraded"]
    assert row.cost_micros == 25


def post(
    lab: Lab, path: str, body: Any, *, asynchronous: bool = False, headers: Any = None, **meter: Any
) -> Any:
    """One request through a metered HTTP client."""
    url = lab.provider.anthropic_url
    given = {"json": body} if isinstance(body, dict) else {"content": body}
    headers = {"authorization": f"Bearer {KEY}", **(headers or {})}

    async def call() -> Any:
        async with allowance.meter(httpx2.AsyncClient(base_url=url), **meter) as client:
            return await client.post(path, headers=headers, **given)

    with allowance.charge_to(user="u"):
        if asynchronous:
            return asyncio.run(call())
        with allowance.meter(httpx2.Client(base_url=url), **meter) as client:
            return client.post(path, headers=headers, **given)


CHAT = {"model": GPT, "messages": ASK, "max_tokens": 100}


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/v1/chat/completions", CHAT, {"authorization": "AWS4-HMAC-SHA256 Credential=a"}),
        ("/v1/chat/completions", CHAT, {"content-digest": "sha-256=:x:"}),
        ("/openai/deployments/gpt-5-mini/chat/completions", CHAT, {}),
        ("/v1/embeddings", {"model": GPT, "input": "hi"}, {}),
    ],
)
def test_what_cannot_be_changed_is_sent_as_it_is_and_says_so(lab, path, body, headers):
    before = metrics.value(metrics.CALLS_FLAGGED, flag="not_degraded")
    DegradeRule.objects.create(from_model="*", to_model=SMALL[GPT])
    at(LEVEL)
    content = json.dumps(body).encode()
    answer = post(lab, path, content, headers=headers, provider="openai")
    assert (answer.status_code, answer.headers.get(DEGRADED)) == (200, None)
    assert [entry.bytes_in for entry in lab.provider.log()] == [len(content)]
    assert sent(lab)[0][0] == GPT
    assert asked(last(lab)) == (GPT, GPT, ["not_degraded"])
    assert metrics.value(metrics.CALLS_FLAGGED, flag="not_degraded") == before + 1


def test_a_deployment_may_still_be_asked_for_less(lab):
    DegradeRule.objects.filter(from_model=GPT).update(to_model="")
    at(LEVEL)
    path = "/openai/deployments/gpt-5-mini/chat/completions?api-version=1"
    post(lab, path, CHAT, provider="openai")
    entry = lab.provider.log()[0]
    assert (entry.path.partition("?")[0], entry.max_output_tokens) == (path.partition("?")[0], 40)


def test_degraded_calls_are_counted(lab):
    before = metrics.value(metrics.CALLS_FLAGGED, flag="degraded")
    at(LEVEL)
    with allowance.charge_to(user="u"):
        lab.ask("openai")
    assert metrics.value(metrics.CALLS_FLAGGED, flag="degraded") == before + 1


@pytest.mark.parametrize("observes", ["limit", "setting", "no level", "overridden"])
def test_what_only_observes_never_makes_a_call_cheaper(lab, observes):
    limits = Limit.objects.filter(user="u")
    at(LEVEL)
    if observes == "limit":
        limits.update(mode="observe")
    elif observes == "no level":
        limits.update(degrade_at=None)
    elif observes == "overridden":
        limits.update(user="*")
        lab.limit("tokens", 10 * AMOUNT, user="u")
    store = {"BACKEND": "tests.metering.FlakyStore", "OPTIONS": {"alias": "default"}}
    mode = "observe" if observes == "setting" else "enforce"
    with override_settings(TOKEN_ALLOWANCE={"STORE": store, "MODE": mode}):
        with allowance.charge_to(user="u"):
            lab.ask("openai")
        assert sent(lab) == [(GPT, MAX_TOKENS)]
        assert asked(last(lab)) == (GPT, GPT, [])


def test_budgets_are_those_of_the_model_that_serves(lab):
    big, small = (lab.limit("calls", 100, model=model) for model in (GPT, SMALL[GPT]))
    at(LEVEL)
    with allowance.charge_to(user="u"):
        lab.ask("openai")
    with allowance.charge_to():
        used = {b.limit.id: b.used for b in allowance.remaining(model=GPT)}
        used |= {b.limit.id: b.used for b in allowance.remaining(model=SMALL[GPT])}
    assert (used[big.pk], used[small.pk]) == (0, 1)


def test_a_refusal_of_the_cheaper_call_sends_nothing(lab):
    lab.limit("calls", 0, model=SMALL[GPT])
    at(LEVEL)
    with pytest.raises(AllowanceExceeded, match="model"), allowance.charge_to(user="u"):
        lab.ask("openai")
    assert lab.requests() == 0


@pytest.mark.parametrize("amount", [0, 1])
def test_a_used_up_budget_of_the_dear_model_refuses_it_and_serves_nothing_cheaper(lab, amount):
    spend(amount, unit="calls", user="u", model=GPT) if amount else None
    lab.limit("calls", amount, model=GPT)
    with pytest.raises(AllowanceExceeded, match="model"), allowance.charge_to(user="u"):
        lab.ask("openai")
    assert lab.requests() == 0


def test_a_budget_of_the_dear_model_that_is_nearly_used_up_leads_to_the_cheaper_one(lab):
    lab.limit("calls", 10, model=GPT)
    with allowance.charge_to(user="u"):
        for _ in range(11):
            lab.ask("openai")
    assert [model for model, _ in sent(lab)] == [GPT] * 9 + [SMALL[GPT]] * 2


def test_a_response_made_in_the_background_is_settled_as_what_made_it(lab):
    at(LEVEL)
    with allowance.charge_to(user="u"), lab.client("openai") as client:
        made = client.responses.create(model=GPT, input="hi", background=True)
        while made.status != "completed":
            made = client.responses.retrieve(made.id)
    row = lab.rows()[-1]
    assert sent(lab)[0] == (SMALL[GPT], SHORT)
    assert asked(row) == (GPT, SMALL[GPT], ["degraded"])
    assert row.cost_micros == 20 + 5


def test_a_level_is_that_of_any_budget(lab):
    """The budget that is full enough need not be the one that refuses first."""
    lab.limit("calls", 10, feature="agent")
    with allowance.charge_to(user="v", feature="agent"):
        for _ in range(10):
            lab.ask("openai")
        with pytest.raises(AllowanceExceeded):
            lab.ask("openai")
    assert [model for model, _ in sent(lab)] == [GPT] * 9 + [SMALL[GPT]]


def test_the_caps_of_a_request_are_no_ladder(lab):
    with allowance.charge_to(user="u", max_calls=3):
        for _ in range(3):
            lab.ask("openai")
    assert [model for model, _ in sent(lab)] == [GPT] * 3


def test_the_store_is_asked_once_below_the_level_and_twice_from_it_on(lab):
    for used, times in ((0, 1), (LEVEL, 2)):
        at(used)
        lab.store.asked.clear()
        with allowance.charge_to(user="u"):
            lab.ask("openai")
        assert lab.store.asked["reserve"] == times
