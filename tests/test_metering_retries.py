"""Every real attempt is a call with a reservation of its own: the retries of an SDK (case C51)."""

from __future__ import annotations

import asyncio

import anthropic
import httpx2
import openai
import pytest

from project.provider import Reply
from tests.metering import ESTIMATE, RESERVED, SDKS, Lab, create, micros
from token_allowance import allowance
from token_allowance.exceptions import AllowanceExceeded, CapExceeded

pytestmark = pytest.mark.django_db(transaction=True)

sdks = pytest.mark.parametrize("sdk", SDKS)
SOON = {"retry-after-ms": "1"}
RETRY = {"max_retries": 2}
TIMEOUTS = (openai.APITimeoutError, anthropic.APITimeoutError, httpx2.TimeoutException)


@pytest.fixture
def lab():
    with Lab() as lab:
        yield lab


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("sdk", "status"), [("openai", 429), ("anthropic", 529)])
def test_two_errors_then_an_answer_are_three_reservations(lab, sdk, status, asynchronous, stream):
    error = Reply(status=status, headers=SOON)
    lab.provider.script([error, error, Reply(input_tokens=40, output_tokens=9)])
    lab.ask(sdk, asynchronous=asynchronous, stream=stream, sdk=RETRY)
    assert lab.ended() == [
        ("released", [], None),
        ("released", [], None),
        ("settled", [], micros(sdk, 40, 9)),
    ]
    assert lab.figures() == {"cost": (micros(sdk, 40, 9), 0), "tokens": (49, 0), "calls": (1, 0)}
    retries = [entry.headers["x-stainless-retry-count"] for entry in lab.provider.log()]
    assert retries == ["0", "1", "2"]


@sdks
def test_errors_to_the_end_are_free(lab, sdk):
    lab.provider.script(default=Reply(status=503, headers=SOON))
    with pytest.raises((openai.InternalServerError, anthropic.InternalServerError)):
        lab.ask(sdk, sdk=RETRY)
    assert lab.ended() == [("released", [], None)] * 3
    assert lab.requests() == 3


@sdks
def test_each_attempt_that_times_out_is_charged_as_reserved(lab, sdk, monkeypatch):
    _retry_at_once(monkeypatch)
    lab.provider.script(default=Reply(hang=True))
    with pytest.raises(TIMEOUTS):
        lab.ask(sdk, sdk={**RETRY, "timeout": 0.15})
    assert lab.ended() == [("settled", ["uncertain"], RESERVED[sdk])] * 3
    assert lab.figures() == {
        "cost": (3 * RESERVED[sdk], 0),
        "tokens": (3 * ESTIMATE[sdk].total_tokens, 0),
        "calls": (3, 0),
    }


def _retry_at_once(monkeypatch) -> None:
    for client in (
        openai.OpenAI,
        openai.AsyncOpenAI,
        anthropic.Anthropic,
        anthropic.AsyncAnthropic,
    ):
        monkeypatch.setattr(client, "_calculate_retry_timeout", lambda *_, **__: 0.001)


@sdks
def test_a_retry_that_no_longer_fits_is_refused_and_not_sent(lab, sdk, monkeypatch):
    _retry_at_once(monkeypatch)
    lab.provider.script(default=Reply(reset_connection=True))
    lab.shrink("cost", 2 * RESERVED[sdk])
    with pytest.raises(AllowanceExceeded) as caught:
        lab.ask(sdk, sdk={"max_retries": 5})
    assert caught.value.reason == "exhausted"
    assert lab.ended() == [("settled", ["uncertain"], RESERVED[sdk])] * 2
    assert lab.requests() == 2


def test_a_cap_of_calls_counts_attempts_case_c51(lab, monkeypatch):
    """2 providers x 2 attempts x (1 + 2 retries), all timing out: 10 dispatched, 11th refused."""
    _retry_at_once(monkeypatch)
    lab.provider.script(default=Reply(hang=True))

    async def fail_over() -> None:
        options = {**RETRY, "timeout": 0.1}
        async with (
            lab.aclient("openai", sdk=options) as first,
            lab.aclient("anthropic", sdk=options) as second,
        ):
            for client in (first, second):
                for _ in range(2):
                    with pytest.raises(TIMEOUTS):
                        await create(client)

    with allowance.charge_to(max_calls=10), pytest.raises(CapExceeded) as caught:
        asyncio.run(fail_over())
    assert (caught.value.unit, caught.value.amount, caught.value.used) == ("calls", 10, 10)
    assert lab.requests() == len(lab.rows(10)) == 10


def test_an_answer_that_the_caller_rejects_is_charged_like_the_one_it_keeps_case_c51(lab):
    lab.provider.script(default=Reply(input_tokens=1_000, output_tokens=500))
    with lab.client("anthropic") as client, allowance.charge_to(trace_id="one-logical-call"):
        create(client)
        create(client)
    rows = lab.rows(2)
    assert [row.cost_micros for row in rows] == [10_500, 10_500]
    assert {row.trace_id for row in rows} == {"one-logical-call"}
    assert lab.figures()["cost"] == (21_000, 0)


def test_an_answer_from_the_applications_cache_is_no_call_case_c53(lab):
    lab.provider.script(default=Reply(input_tokens=1_000, output_tokens=500))
    cache = {}
    with lab.client("anthropic") as client:
        for _ in range(3):
            cache["answer"] = cache.get("answer") or create(client)
    assert lab.figures() == {"cost": (10_500, 0), "tokens": (1_500, 0), "calls": (1, 0)}


def test_what_a_framework_reports_again_is_not_charged_again_case_c52(lab):
    """An outer meter by hand and a metered client inside: two leaf calls, two rows."""
    lab.provider.script(
        [
            Reply(input_tokens=7_213, output_tokens=386),
            Reply(input_tokens=7_213, output_tokens=385),
        ]
    )
    with lab.client("openai") as client:
        for _ in range(2):
            with allowance.call(provider="openai", model="gpt-5-mini", input_tokens=9) as call:
                used = create(client).usage
                call.record(allowance.Usage(used.prompt_tokens, used.completion_tokens))
    rows = lab.rows(2)
    assert sum(row.input_tokens for row in rows) == 14_426
    assert sum(row.output_tokens for row in rows) == 771
    assert lab.requests() == 2
