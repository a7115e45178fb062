"""The official OpenAI client, metered: what is charged, and what the caller sees of it."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal

import pytest

from project.provider import Reply
from tests.metering import ASK, ESTIMATE, GPT, RESERVED, Lab, create, text_of
from token_allowance import allowance
from token_allowance.exceptions import AllowanceExceeded

pytestmark = pytest.mark.django_db(transaction=True)

TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture
def lab():
    with Lab() as lab:
        yield lab


def test_a_streamed_call_costs_what_the_plain_one_costs_case_c26(lab):
    lab.provider.script(
        default=Reply(input_tokens=1_203, cached_tokens=1_024, output_tokens=17, text="a b c")
    )
    lab.ask("openai")
    lab.ask("openai", stream=True)
    plain, streamed = lab.rows(2)
    # 179 fresh, 1,024 cached at a tenth, 17 out at two
    assert plain.cost_exact == streamed.cost_exact == Decimal("315.4")
    assert plain.cost_micros == streamed.cost_micros == 316
    assert plain.cache_read_tokens == streamed.cache_read_tokens == 1_024
    assert plain.usage == streamed.usage
    assert plain.price["input_mtok"] in ("1", "1.00000000")


def test_usage_that_only_we_asked_for_is_hidden_from_the_caller_case_c30(lab):
    with lab.sdk("openai") as original:
        unmetered = [_plain(event) for event in create(original, stream=True)]
        metered = [_plain(e) for e in create(allowance.meter(original), stream=True)]
    assert metered == unmetered
    assert all(event["choices"] for event in metered)
    assert [bool(entry.usage) for entry in lab.provider.log()] == [False, True]
    row = lab.row()
    assert (row.state, row.flags) == ("settled", [])
    assert row.raw_usage["completion_tokens"] == row.output_tokens


def test_usage_that_the_caller_asked_for_reaches_it(lab):
    events = lab.ask("openai", stream=True, stream_options={"include_usage": True})
    (last,) = [event for event in events if event.usage]
    row = lab.row()
    assert (last.choices, last.usage.prompt_tokens) == ([], row.input_tokens)


def test_options_of_a_stream_are_kept_beside_ours(lab):
    events = lab.ask("openai", stream=True, stream_options={"include_obfuscation": False})
    assert all(event.choices for event in events)
    assert lab.row().flags == []


def _plain(event):
    return {k: v for k, v in event.to_dict().items() if k not in ("id", "created", "usage")}


def test_the_caller_reads_a_plain_answer_unchanged(lab):
    lab.provider.script(default=Reply(text="Sunny.", content_encoding="gzip"))
    answer = lab.ask("openai")
    assert answer.choices[0].message.content == "Sunny."
    row = lab.row()
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (
        row.input_tokens,
        row.output_tokens,
    )


def test_a_compressed_stream_is_read_by_us_and_by_the_caller(lab):
    lab.provider.script(default=Reply(text="Sunny.", content_encoding="gzip", output_tokens=9))
    events = lab.ask("openai", stream=True)
    assert "".join(map(text_of, events)) == "Sunny."
    assert all(event.choices for event in events)
    assert (lab.row().flags, lab.row().output_tokens) == ([], 9)


def test_usage_on_a_chunk_that_has_a_choice_counts_case_c29(lab):
    lab.price(
        "openai", "deep-1", Decimal("0.27"), Decimal("1.10"), cache_read_mtok=Decimal("0.027")
    )
    usage = {
        "prompt_tokens": 16_111,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 15_872},
    }
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}
    lab.provider.script([Reply(body=f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n")])
    lab.ask("openai", stream=True, model="deep-1")
    assert (lab.row().cost_micros, lab.row().cost_exact) == (496, Decimal("495.274"))


def test_every_choice_is_reserved(lab):
    lab.provider.script([Reply(input_tokens=20, output_tokens=240)])
    lab.ask("openai", n=3)
    row = lab.row()
    assert row.reserved_tokens == ESTIMATE["openai"].input_tokens + 300
    assert row.cost_micros == 20 + 480


def test_an_answer_without_a_maximum_is_reserved_by_the_setting():
    with Lab(ESTIMATE={"output_tokens": 700}) as lab:
        with lab.client("openai") as client:
            client.chat.completions.create(model=GPT, messages=ASK)
        assert lab.row().reserved_tokens == ESTIMATE["openai"].input_tokens + 700


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_are_one_call_each(lab, stream):
    call = {"name": "weather", "arguments": {"city": "Lisbon"}}
    lab.provider.script(
        [Reply(tool_calls=[call], output_tokens=21, input_tokens=60), Reply(output_tokens=5)]
    )
    lab.ask("openai", tools=[TOOL], stream=stream)
    lab.ask("openai", tools=[TOOL], stream=stream)
    first, second = lab.rows(2)
    assert (first.cost_micros, second.output_tokens) == (60 + 42, 5)


def test_attribution_of_the_client_and_of_the_block(lab):
    with lab.client("openai", feature="chat", tenant="own") as client:
        with allowance.charge_to(tenant="acme", user="u_1", trace_id="t-1"):
            create(client)
        with allowance.charge_to(feature="digest"):
            create(client)
    rows = [(row.tenant, row.user, row.feature, row.trace_id) for row in lab.rows(2)]
    assert rows == [("acme", "u_1", "chat", "t-1"), ("own", "", "digest", "")]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_a_refusal_arrives_as_itself_and_nothing_is_sent(lab, asynchronous, stream):
    lab.provider.script([Reply(input_tokens=100, output_tokens=40)])  # 180 micro-dollars
    lab.ask("openai")
    lab.shrink("cost", 180 + RESERVED["openai"] - 1)
    before = lab.figures()
    lab.store.asked.clear()
    with pytest.raises(AllowanceExceeded) as caught:
        lab.ask("openai", asynchronous=asynchronous, stream=stream, sdk={"max_retries": 2})
    assert type(caught.value) is AllowanceExceeded
    assert caught.value.__cause__ is None
    assert (caught.value.used, caught.value.needed) == (180, RESERVED["openai"])
    assert lab.store.asked == {"reserve": 1}
    assert lab.requests() == 1
    assert len(lab.rows()) == 1
    assert lab.figures() == before


def test_a_call_that_fits_exactly_is_admitted(lab):
    lab.shrink("cost", RESERVED["openai"])
    lab.ask("openai")
    assert lab.row().state == "settled"


def test_a_refusal_through_the_raw_response_and_beta_helpers(lab):
    lab.provider.script([Reply(input_tokens=100, output_tokens=40)])
    lab.ask("openai")
    lab.shrink("cost", 180 + RESERVED["openai"] - 1)
    fixed = {"model": GPT, "messages": ASK, "max_completion_tokens": 100}
    with lab.client("openai", sdk={"max_retries": 2}) as client:
        completions = client.chat.completions
        with pytest.raises(AllowanceExceeded):
            completions.with_raw_response.create(**fixed)
        with (
            pytest.raises(AllowanceExceeded),
            completions.with_streaming_response.create(**fixed),
        ):
            pass
        with pytest.raises(AllowanceExceeded), completions.stream(**fixed):
            pass
    assert lab.requests() == 1


def test_many_calls_at_once_each_have_their_row(lab):
    async def many() -> None:
        async with lab.aclient("openai") as client:
            await asyncio.gather(*(one(client, stream=n % 2 == 1) for n in range(12)))

    async def one(client, stream: bool) -> None:
        answer = await create(client, stream=stream)
        if stream:
            assert [event async for event in answer]

    lab.provider.script(default=Reply(input_tokens=10, output_tokens=10))
    asyncio.run(many())
    assert lab.requests() == len(lab.rows(12)) == 12
