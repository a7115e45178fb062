"""OpenAI's responses through the SDK: plain, streamed, cut, searched, and in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from project.provider import Reply
from tests.metering import GPT, Lab
from token_allowance import allowance
from token_allowance.exceptions import AllowanceExceeded

pytestmark = pytest.mark.django_db(databases=["default"], transaction=True)
ANSWER = Reply(text="Mild and dry.", input_tokens=40, output_tokens=9)
COST = 40 * 1 + 9 * 2


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as lab:
        lab.provider.script([], default=ANSWER)
        yield lab


def ask(client: Any, **options: Any) -> Any:
    fixed = {"model": GPT, "input": "please say something", "max_output_tokens": 100}
    return client.responses.create(**{**fixed, **options})


def test_a_plain_a_streamed_and_an_asynchronous_response_cost_the_same_c26(lab):
    with lab.client("openai", feature="r") as client:
        assert ask(client).output_text == "Mild and dry."
        events = list(ask(client, stream=True))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == (
        "Mild and dry."
    )

    async def both() -> None:
        async with lab.aclient("openai") as client:
            await ask(client)
            assert [event.type async for event in await ask(client, stream=True)][-1] == (
                "response.completed"
            )

    asyncio.run(both())
    rows = lab.rows(4)
    assert [(row.cost_micros, row.flags) for row in rows] == [(COST, [])] * 4
    assert {(row.input_tokens, row.output_tokens) for row in rows} == {(40, 9)}
    assert all(row.provider_request_id.startswith("resp_") for row in rows)


def test_c33_an_answer_cut_at_its_maximum_is_charged(lab):
    lab.provider.script([Reply(text="word " * 50)])
    with lab.client("openai") as client:
        events = list(ask(client, stream=True, max_output_tokens=5))
    assert events[-1].type == "response.incomplete"
    row = lab.row()
    assert (row.output_tokens, row.flags, row.state) == (5, [], "settled")


def test_c33_a_response_that_fails_before_any_output_costs_nothing(lab):
    failed = (
        'data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1",'
        '"status":"in_progress","usage":null}}\n\n'
        'data: {"type":"response.failed","sequence_number":1,"response":{"id":"resp_1",'
        '"status":"failed","error":{"code":"server_error","message":"x"},"usage":null}}\n\n'
    )
    lab.provider.script([Reply(body=failed)])
    with lab.client("openai") as client:
        list(ask(client, stream=True))
    assert lab.ended() == [("released", [], None)]


def test_a_stream_that_breaks_is_charged_for_what_was_delivered(lab):
    lab.provider.script([Reply(text="word " * 40, drop_after_chunks=5)])
    with lab.client("openai") as client, pytest.raises(Exception, match=r"."):
        list(ask(client, stream=True))
    row = lab.row()
    assert row.flags == ["interrupted"]
    assert 0 < row.output_tokens < 100


def test_c14_a_search_that_was_made_is_charged_and_one_that_was_offered_is_not(lab):
    lab.price("openai", "gpt-search", 2, 8, web_search_thousand=Decimal(10))
    searched = [{"name": "web_search", "arguments": {}}]
    counts: dict[str, Any] = {"input_tokens": 100, "output_tokens": 4619}
    lab.provider.script([Reply(text="x", **counts), Reply(text="x", tool_calls=searched, **counts)])
    with lab.client("openai") as client:
        for _ in range(2):
            ask(client, model="gpt-search", tools=[{"type": "web_search"}], max_tool_calls=2)
    offered, made = lab.rows(2)
    assert (offered.cost_micros, made.cost_micros) == (37_152, 47_152)
    assert made.usage == {"input_tokens": 100, "output_tokens": 4619, "web_searches": 1}
    assert offered.reserved_micros > 20_000  # two searches at most


def test_an_answer_in_the_background_is_held_and_settled_when_it_is_fetched(lab):
    with lab.client("openai") as client:
        waiting = ask(client, background=True)
        assert (waiting.status, waiting.usage) == ("queued", None)
        (row,) = lab.rows()
        assert (row.state, row.deferred_id) == ("reserved", waiting.id)
        assert (row.expires_at - row.created_at).total_seconds() > 23 * 3600
        assert client.responses.retrieve(waiting.id).status == "queued"
        assert lab.rows()[0].state == "reserved"
        assert client.responses.retrieve(waiting.id).status == "completed"
        client.responses.retrieve(waiting.id)  # looking again charges nothing
    row = lab.row()
    assert (row.state, row.cost_micros, row.flags) == ("settled", COST, [])
    assert lab.figures()["cost"] == (COST, 0)


def test_an_asynchronous_client_fetches_an_answer_too(lab):
    async def story() -> None:
        async with lab.aclient("openai") as client:
            waiting = await ask(client, background=True)
            for _ in range(2):
                await client.responses.retrieve(waiting.id)

    asyncio.run(story())
    assert [(row.state, row.cost_micros) for row in lab.rows(1)] == [("settled", COST)]


def test_what_a_cancelled_answer_cost_is_not_known(lab):
    with lab.client("openai") as client:
        waiting = ask(client, background=True)
        reserved = lab.rows()[0].reserved_micros
        assert client.responses.cancel(waiting.id).status == "cancelled"
    assert lab.ended() == [("settled", ["uncertain"], reserved)]


def test_an_answer_in_the_background_may_be_settled_by_hand(lab):
    with lab.client("openai") as client:
        waiting = ask(client, background=True)
        usage = allowance.Usage(input_tokens=40, output_tokens=9)
        assert allowance.settle_deferred(waiting.id, usage) == "settled"
        for _ in range(2):
            client.responses.retrieve(waiting.id)
    assert [row.cost_micros for row in lab.rows(1)] == [COST]


def test_fetching_what_was_never_deferred_is_left_alone(lab):
    with lab.client("openai") as client:
        answer = ask(client)
        with pytest.raises(Exception, match="no such response"):
            client.responses.retrieve(answer.id)
    assert [row.cost_micros for row in lab.rows(1)] == [COST]


def test_a_response_is_refused_before_it_is_sent(lab):
    lab.shrink("calls", 0)
    with lab.client("openai") as client, pytest.raises(AllowanceExceeded):
        ask(client)
    assert lab.requests() == 0
