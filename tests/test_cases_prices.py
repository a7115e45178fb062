"""Which price a call has, and that what it cost stays as it was (cases of kind B, and C15, C17)."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from unittest import mock

import httpx2
import openai
import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from tests.metering import ASK, GPT, KEY, MAX_TOKENS, Lab
from token_allowance import allowance
from token_allowance.exceptions import AllowanceExceeded, UnknownModel
from token_allowance.models import ModelAlias, Price, Reservation

pytestmark = pytest.mark.django_db(databases=["default"], transaction=True)
MIDNIGHT = dt.datetime(2026, 8, 21, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as lab:
        yield lab


def settled(provider: str, model: str, usage: allowance.Usage, **options: Any) -> Reservation:
    """One call by hand, from its reservation to its row."""
    with allowance.call(provider=provider, model=model, input_tokens=10, **options) as call:
        call.record(usage)
    return Reservation.objects.latest("id")


def reported(provider: str, usage: dict[str, Any], model: str = GPT) -> Reservation:
    """One call through the SDK to a provider that reports this usage."""
    answer = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant"}}],
        "usage": usage,
    }
    with metered(answer, provider) as client:
        client.chat.completions.create(model=model, messages=ASK, max_tokens=MAX_TOKENS)
    return Reservation.objects.latest("id")


@contextmanager
def metered(answer: dict[str, Any], provider: str) -> Iterator[Any]:
    body = json.dumps(answer).encode()
    headers = {"content-type": "application/json"}
    transport = httpx2.MockTransport(
        lambda request: httpx2.Response(200, content=body, headers=headers)
    )
    with httpx2.Client(transport=transport) as http:
        client = openai.OpenAI(api_key=KEY, http_client=http, max_retries=0)
        yield allowance.meter(client, provider=provider)


def test_c15_a_batch_item_is_charged_once_at_the_rates_of_batches(lab):
    lab.price("openai", "m", 2, 8, cache_read_mtok=Decimal("0.5"))
    lab.price("openai", "m", 1, 4, cache_read_mtok=Decimal("0.25"), service_tier="batch")
    usage = allowance.Usage(10_000, 1_000, cache_read_tokens=6_000)
    options = {"provider": "openai", "model": "m", "input_tokens": 10_000}
    with allowance.call(**options, max_output_tokens=1_000, service_tier="batch") as call:
        call.defer("batch_1:a")
    told = [allowance.settle_deferred("batch_1:a", usage) for _ in range(3)]
    row = Reservation.objects.get()
    assert (row.cost_micros, told) == (9_500, ["settled", "repeat", "repeat"])
    assert lab.figures()["cost"] == (9_500, 0)


def test_a_deferred_call_pays_the_long_context_price_that_its_input_reaches(lab):
    lab.price("openai", "m", Decimal("1.25"), 10)
    lab.price("openai", "m", Decimal("2.50"), 15, min_input_tokens=200_001)
    with allowance.call(provider="openai", model="m", input_tokens=10) as call:
        call.defer("batch_1:b")
    lab.price("openai", "m", 100, 100, effective_from=timezone.now() + dt.timedelta(days=1))
    allowance.settle_deferred("batch_1:b", allowance.Usage(200_001, 1_000))
    assert Reservation.objects.get().cost_micros == 515_003  # case C09


BYOK = {"cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.0360795}}
C17 = {"prompt_tokens": 9171, "completion_tokens": 113, "total_tokens": 9284}


def test_c17a_a_gateway_with_an_own_key_is_charged_what_the_upstream_costs(lab):
    lab.price("openrouter", GPT, 1, 2)
    row = reported("openrouter", {**C17, **BYOK})
    assert (row.cost_micros, row.cost_exact) == (36_080, Decimal("36079.5"))
    assert row.flags == ["cost_differs", "cost_reported"]


def test_c17b_a_free_model_that_reports_no_cost_is_free(lab):
    lab.price("openrouter", GPT, 0, 0)
    row = reported("openrouter", {**C17, "cost": 0, "is_byok": False})
    assert (row.cost_micros, row.flags) == (0, ["cost_reported"])


def test_c17_a_reported_zero_does_not_make_a_priced_model_free(lab):
    lab.price("openrouter", GPT, 1, 2)
    row = reported("openrouter", {**C17, "cost": 0, "is_byok": False})
    assert (row.cost_micros, row.flags) == (9_171 + 226, ["cost_differs"])


@pytest.mark.parametrize("dollars", [-2809, "NaN", None])
def test_c17_a_cost_that_cannot_be_is_not_charged(lab, dollars):
    lab.price("openrouter", GPT, 1, 2)
    row = reported("openrouter", {**C17, "cost": dollars})
    assert (row.cost_micros, row.flags) == (9_171 + 226, [])


@pytest.mark.parametrize(("dollars", "flags"), [(0.009397, []), (0.0095, ["cost_differs"])])
def test_a_cost_that_others_report_is_only_compared(lab, dollars, flags):
    row = reported("openai", {**C17, "cost": dollars})
    assert (row.cost_micros, row.flags) == (9_171 + 226, flags)


def test_c17c_without_a_price_a_call_is_unpriced_and_never_negative():
    with Lab(MODE="observe"):
        row = settled("acme", "no-price", allowance.Usage(2_789, 20))
        assert (row.cost_micros, row.cost_exact, row.flags) == (None, None, ["unpriced"])
    with pytest.raises(IntegrityError), transaction.atomic():
        Price.objects.create(provider="p", model="m", input_mtok=-1_000_000, output_mtok=1)
    with pytest.raises(IntegrityError), transaction.atomic():
        Price.objects.create(provider="p", model="m", input_mtok=1, output_mtok=1, image_each=-1)


def test_c20_a_name_that_is_not_in_the_table_is_refused_by_name(lab):
    lab.price("anthropic", "claude-opus-4-1", 15, 75)
    with pytest.raises(UnknownModel, match=r"claude-opus-4\.1"):
        settled("anthropic", "claude-opus-4.1", allowance.Usage(1, 1))
    assert lab.rows() == []


def test_c20_only_the_model_without_a_price_has_the_fallback_price():
    fallback = {"input_mtok": "5", "output_mtok": "25"}
    with Lab(UNKNOWN_MODEL="fallback", FALLBACK_PRICE=fallback):
        row = settled("acme", "reranker", allowance.Usage(100, 10))
        assert (row.cost_micros, row.flags) == (750, ["unpriced"])
        assert settled("openai", GPT, allowance.Usage(100, 10)).flags == []


@pytest.mark.parametrize("name", ["ollama/llama3.2", "local"])
def test_c21_a_model_declared_free_needs_no_dollars_but_its_tokens_count(lab, name):
    lab.price("ollama", "ollama/llama3.2", 0, 0)
    ModelAlias.objects.create(alias="local", provider="ollama", model="ollama/llama3.2")
    lab.limit("cost", 50, tenant="acme")
    lab.limit("tokens", 1_000, tenant="acme")
    lab.price("ollama", "paid", 1, 0)
    settled("ollama", "paid", allowance.Usage(50), tenant="acme", max_output_tokens=1)
    settled("ollama", name, allowance.Usage(850), tenant="acme", max_output_tokens=1)
    options = {"tenant": "acme", "max_output_tokens": 40}
    row = settled("ollama", name, allowance.Usage(50), **options)
    assert (row.cost_micros, row.flags, row.model) == (0, [], "ollama/llama3.2")
    with pytest.raises(AllowanceExceeded) as refused:
        settled("ollama", name, allowance.Usage(), tenant="acme", max_output_tokens=190)
    assert (refused.value.unit, refused.value.used) == ("tokens", 950)


def test_c22_a_declared_deployment_wins_over_the_name_in_the_answer(lab):
    lab.price("openai", "gpt-4-1106-preview", 10, 30)
    lab.price("openai", "gpt-4", 30, 60)
    ModelAlias.objects.create(alias="chatgpt-v-2", provider="openai", model="gpt-4-1106-preview")
    usage = {"prompt_tokens": 9, "completion_tokens": 28, "total_tokens": 37}
    answer = {"id": "c", "model": "gpt-4", "choices": [], "usage": usage}
    with metered(answer, "azure") as client:
        client.chat.completions.create(model="chatgpt-v-2", messages=ASK, max_tokens=28)
    assert Reservation.objects.get().cost_micros == 930


def test_c22_a_dated_name_has_the_price_of_the_undated_one(lab):
    lab.price("openai", "gpt-5.6-x", 1, 2)
    row = settled("openai", "gpt-5.6-x-2026-07-09", allowance.Usage(10, 1))
    assert (row.cost_micros, row.model) == (12, "gpt-5.6-x")
    assert row.requested_model == "gpt-5.6-x-2026-07-09"


def test_c24_a_tuned_model_and_a_router_prefix(lab):
    lab.price("openai", "ft:gpt-3.5-turbo", 3, 6)
    lab.price("openai", "gpt-3.5-turbo", Decimal("0.5"), Decimal("1.5"))
    lab.price("openai", "gpt-5.5", 1, 1)
    usage = allowance.Usage(1_000, 1_000)
    assert settled("openai", "ft:gpt-3.5-turbo:acme:bot:abc123", usage).cost_micros == 9_000
    with pytest.raises(UnknownModel, match=r"cx/gpt-5\.5"):
        settled("openai", "cx/gpt-5.5", usage)
    ModelAlias.objects.create(alias="cx/gpt-5.5", provider="openai", model="gpt-5.5")
    assert settled("openai", "cx/gpt-5.5", usage).cost_micros == 2_000


def test_c25_a_call_keeps_the_price_of_the_moment_it_was_reserved_in(lab):
    lab.price("openai", "m", 5, 30)
    lab.price("openai", "m", 4, 20, effective_from=MIDNIGHT)
    usage = allowance.Usage(1_000_000, 100_000)
    options = {"provider": "openai", "model": "m", "input_tokens": 10, "max_output_tokens": 1}
    calls = []
    for moment in (MIDNIGHT - SECOND, MIDNIGHT):
        with mock.patch("token_allowance.reservations.timezone.now", return_value=moment):
            calls.append(allowance.call(**options).__enter__())
    for call in reversed(calls):
        call.record(usage)
        call.__exit__(None, None, None)

    def report() -> list[int | None]:
        rows = Reservation.objects.order_by("created_at")
        return list(rows.values_list("cost_micros", flat=True))

    assert report() == [8_000_000, 6_000_000]
    lab.price("openai", "m", 1, 1, effective_from=MIDNIGHT + SECOND)
    assert report() == [8_000_000, 6_000_000]
    kept = [row.price["input_mtok"] for row in Reservation.objects.order_by("created_at")]
    assert [Decimal(rate) for rate in kept] == [5, 4]


def test_c26_a_row_whose_cost_is_not_the_sum_of_its_parts_cannot_be_written(lab):
    row = settled("openai", GPT, allowance.Usage(10, 10))
    assert (row.cost_micros, row.cost_exact) == (30, 30)
    for wrong in ({"cost_micros": 0}, {"cost_micros": 31}, {"cost_exact": Decimal(0)}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Reservation.objects.filter(pk=row.pk).update(**wrong)


def test_a_fee_that_is_not_in_the_price_is_said_to_be_unknown(lab):
    row = settled("openai", GPT, allowance.Usage(10, 10, web_searches=1))
    assert (row.cost_micros, row.flags) == (30, ["fee_unknown"])


def test_another_model_that_took_part_has_its_own_price(lab):
    lab.price("openai", "gpt-image-2", 5, 10, output_image_mtok=40)
    drawn = {"input_tokens": 50, "output_tokens": 1000, "total_tokens": 1050}
    answer = {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "output": [],
        "tools": [{"type": "image_generation", "model": "gpt-image-2"}],
        "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
        "tool_usage": {"image_gen": drawn, "web_search": {"num_requests": 0}},
    }
    with metered(answer, "openai") as client:
        client.responses.create(model=GPT, input="draw a cat")
    row = Reservation.objects.get()
    assert row.cost_micros == 10 * 1 + 5 * 2 + 50 * 5 + 1000 * 40
    assert (row.input_tokens, row.output_tokens) == (60, 1005)
    assert row.flags == ["iterations"]
