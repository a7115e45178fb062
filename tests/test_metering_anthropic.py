"""The official Anthropic client, metered: what is charged, and what the caller sees of it."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal

import pytest

from project.provider import Reply
from tests.metering import ASK, CLAUDE, ESTIMATE, RESERVED, Lab, create
from token_allowance.exceptions import AllowanceExceeded

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lab():
    with Lab() as lab:
        yield lab


def events(*documents) -> Reply:
    """A stream of exactly these events."""
    return Reply(
        body="".join(f"event: {d['type']}\ndata: {json.dumps(d)}\n\n" for d in documents), chunks=3
    )


def start(**usage):
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": CLAUDE}
    rest = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    return {"type": "message_start", "message": {**message, **rest}}


def delta(**usage):
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    return {"type": "message_delta", "delta": stop, "usage": usage}


STOP = {"type": "message_stop"}


@pytest.mark.parametrize(
    ("documents", "input_tokens", "output_tokens", "cost_micros"),
    [
        ([start(input_tokens=25, output_tokens=1), delta(output_tokens=15)], 25, 15, 300),
        (
            [start(input_tokens=27, output_tokens=1), delta(input_tokens=27, output_tokens=47)],
            27,
            47,
            786,
        ),
        (  # the fee of the web search comes with the issue that adds prices per unit
            [
                start(input_tokens=472, output_tokens=2),
                delta(input_tokens=10_682, output_tokens=510),
            ],
            10_682,
            510,
            39_696,
        ),
        (
            [
                start(input_tokens=25, output_tokens=1),
                delta(output_tokens=10),
                delta(output_tokens=15),
            ],
            25,
            15,
            300,
        ),
    ],
    ids="abcd",
)
def test_the_last_figure_of_each_field_counts_case_c28(
    lab, documents, input_tokens, output_tokens, cost_micros
):
    lab.provider.script([events(*documents, STOP)])
    lab.ask("anthropic", stream=True)
    row = lab.row()
    assert (row.input_tokens, row.output_tokens) == (input_tokens, output_tokens)
    assert (row.cost_micros, row.flags) == (cost_micros, [])


def test_half_written_tool_arguments_do_not_matter_case_c36(lab):
    block = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}
    half = {"type": "input_json_delta", "partial_json": '{"city":"Rom'}
    lab.provider.script(
        [
            events(
                start(input_tokens=1_800, output_tokens=1),
                {"type": "content_block_start", "index": 0, "content_block": block},
                {"type": "content_block_delta", "index": 0, "delta": half},
                {"type": "content_block_stop", "index": 0},
                {**delta(output_tokens=4_096), "delta": {"stop_reason": "max_tokens"}},
                STOP,
            )
        ]
    )
    lab.ask("anthropic", stream=True)
    assert (lab.row().cost_micros, lab.row().flags) == (66_840, [])


def test_a_streamed_call_costs_what_the_plain_one_costs_case_c26(lab):
    lab.provider.script(
        default=Reply(input_tokens=1_203, cached_tokens=1_024, output_tokens=17, text="a b c")
    )
    lab.ask("anthropic")
    lab.ask("anthropic", stream=True)
    plain, streamed = lab.rows(2)
    # 179 fresh at 3, 1,024 read at 0.30, 17 out at 15
    assert plain.cost_exact == streamed.cost_exact == Decimal("1099.2")
    assert plain.cost_micros == streamed.cost_micros == 1_100
    assert (plain.input_tokens, plain.cache_read_tokens) == (1_203, 1_024)
    assert plain.usage == streamed.usage


def test_a_cache_write_is_charged_once(lab):
    """Case C01 with the SDK: written, then read back by the same conversation."""
    system = [{"type": "text", "text": "Be brief. " * 50, "cache_control": {"type": "ephemeral"}}]
    written, read = (lab.ask("anthropic", system=system).usage for _ in range(2))
    first, second = lab.rows(2)
    assert first.cache_write_tokens == written.cache_creation_input_tokens > 0
    assert second.cache_read_tokens == read.cache_read_input_tokens == first.cache_write_tokens
    assert first.input_tokens == written.input_tokens + first.cache_write_tokens
    fresh = 3 * written.input_tokens + 15 * written.output_tokens
    assert (
        first.cost_micros == fresh + 3 * first.cache_write_tokens
    )  # no price for writes: as input


def test_the_stream_helper_and_beta_messages_are_metered(lab):
    lab.provider.script(default=Reply(input_tokens=40, output_tokens=9))
    fixed = {"model": CLAUDE, "max_tokens": 100, "messages": ASK}
    with lab.client("anthropic") as client:
        with client.messages.stream(**fixed) as stream:
            message = stream.get_final_message()
        client.beta.messages.create(**fixed)
    assert message.usage.output_tokens == 9
    assert [row.cost_micros for row in lab.rows(2)] == [255, 255]


def test_counting_tokens_is_free(lab):
    lab.shrink("calls", 0)
    with lab.client("anthropic") as client:
        counted = client.messages.count_tokens(model=CLAUDE, messages=ASK)
    assert counted.input_tokens > 0
    assert lab.rows() == []


def test_what_is_reserved(lab):
    lab.ask("anthropic", max_tokens=333)
    row = lab.row()
    assert row.reserved_tokens == ESTIMATE["anthropic"].input_tokens + 333
    assert row.reserved_micros == 3 * ESTIMATE["anthropic"].input_tokens + 15 * 333


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_a_refusal_arrives_as_itself_and_nothing_is_sent(lab, asynchronous, stream):
    lab.provider.script([Reply(input_tokens=100, output_tokens=40)])  # 900 micro-dollars
    lab.ask("anthropic")
    lab.shrink("cost", 900 + RESERVED["anthropic"] - 1)
    before = lab.figures()
    lab.store.asked.clear()
    with pytest.raises(AllowanceExceeded) as caught:
        lab.ask("anthropic", asynchronous=asynchronous, stream=stream, sdk={"max_retries": 2})
    assert type(caught.value) is AllowanceExceeded
    assert caught.value.__cause__ is None
    assert lab.store.asked == {"reserve": 1}
    assert lab.requests() == 1
    assert len(lab.rows()) == 1
    assert lab.figures() == before


def test_a_refusal_through_the_stream_helpers(lab):
    lab.provider.script([Reply(input_tokens=100, output_tokens=40)])
    lab.ask("anthropic")
    lab.shrink("cost", 900 + RESERVED["anthropic"] - 1)
    fixed = {"model": CLAUDE, "max_tokens": 100, "messages": ASK}
    with lab.client("anthropic", sdk={"max_retries": 2}) as client:
        with pytest.raises(AllowanceExceeded), client.messages.stream(**fixed):
            pass
        with pytest.raises(AllowanceExceeded):
            client.messages.with_raw_response.create(**fixed)

    async def stream() -> None:
        async with lab.aclient("anthropic") as client, client.messages.stream(**fixed):
            pass

    with pytest.raises(AllowanceExceeded):
        asyncio.run(stream())
    assert lab.requests() == 1


def test_interleaved_streams_do_not_mix_case_c37(lab):
    def script(request):
        size = request.messages[0]["content"]
        return Reply(text=" windy" * 8, chunks=4, input_tokens=int(size), output_tokens=int(size))

    lab.provider.script(script)
    asks = [[{"role": "user", "content": size}] for size in ("10", "20")]
    with lab.client("anthropic") as client:
        streams = [iter(create(client, stream=True, messages=ask)) for ask in asks]
        live = list(streams)
        while live:
            live = [stream for stream in live if next(stream, None) is not None]
    one, two = lab.rows(2)
    assert [(one.input_tokens, one.output_tokens), (two.input_tokens, two.output_tokens)] == [
        (10, 10),
        (20, 20),
    ]
