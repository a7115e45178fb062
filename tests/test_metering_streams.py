"""Streams on their way to the caller: cut at any byte, compressed, abandoned, slow, unreadable."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable

import httpx
import httpx2
import pytest
from django.utils import timezone

from project.provider import Reply
from tests.metering import ASK, CLAUDE, ESTIMATE, GPT, RESERVED, SDKS, Lab, create, text_of
from token_allowance import allowance, threads
from token_allowance.estimate import text_tokens
from token_allowance.leases import expire

pytestmark = pytest.mark.django_db(transaction=True)

sdks = pytest.mark.parametrize("sdk", SDKS)
PACED = Reply(text=" windy" * 16, chunks=4, chunk_delay_seconds=0.2, input_tokens=40)
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":5}}\r\n\r\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
SPLIT = (
    b'data: {"choices":[{"index":0,"delta":{"content":"\xc3\xa9"}}]}\r\n\r\n'
    b": keep-alive\r\n\r\n" + USAGE + b"data: [DONE]"
)


@pytest.fixture
def lab():
    with Lab() as lab:
        yield lab


def answering(module, parts, **headers):
    """An HTTP client whose answer is an event stream in exactly these reads."""

    class Parts(module.SyncByteStream):
        def __iter__(self):
            yield from parts

    def answer(request):
        request.read()
        fixed = {"content-type": "text/event-stream"}
        return module.Response(200, headers={**fixed, **headers}, stream=Parts())

    return module.Client(transport=module.MockTransport(answer))


def post(client, **body):
    """What the caller reads of a streamed call over plain HTTP."""
    body = {"model": GPT, "messages": ASK, "stream": True, "max_tokens": 100, **body}
    with client.stream("POST", "http://127.0.0.1/v1/chat/completions", json=body) as response:
        return b"".join(response.iter_raw())


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_events_split_at_any_byte_are_read_the_same_case_c35(lab, module):
    points = range(1, len(SPLIT), 3 if module is httpx else 2)
    for point in points:
        with answering(module, [SPLIT[:point], SPLIT[point:]]) as http:
            shown = post(allowance.meter(http, provider="openai"))
        assert [line for line in shown.splitlines() if line] == [
            line for line in SPLIT.replace(USAGE, b"").splitlines() if line
        ]
    rows = lab.rows(len(points))
    assert {(row.input_tokens, row.output_tokens, row.cost_micros) for row in rows} == {(10, 5, 20)}


def test_an_encoding_that_we_cannot_read_is_charged_as_reserved(lab):
    with answering(httpx2, [b"\x8b\x02", b"\x80"], **{"content-encoding": "br"}) as http:
        assert post(allowance.meter(http, provider="openai")) == b"\x8b\x02\x80"
    row = lab.row()
    assert (row.flags, row.cost_micros) == (["estimated", "unparsed"], RESERVED["openai"])


def test_a_compression_that_is_broken_is_passed_on_and_charged_as_reserved(lab):
    parts = [b"this is no gzip", b" at all"]
    with answering(httpx2, parts, **{"content-encoding": "gzip"}) as http:
        assert post(allowance.meter(http, provider="openai")) == b"this is no gzip at all"
    assert lab.row().flags == ["estimated", "unparsed"]


@sdks
def test_a_stream_is_passed_on_without_delay(lab, sdk):
    lab.provider.script([PACED])
    with lab.client(sdk) as client:
        arrived = [time.monotonic() for event in create(client, stream=True) if text_of(event)]
    assert len(arrived) == 4
    assert arrived[-1] - arrived[0] > 0.3


def abandon(lab: Lab, sdk: str, *, asynchronous: bool, events: int) -> None:
    """Drop a stream after so many events, without closing it."""

    async def leave() -> None:
        async with lab.aclient(sdk) as client:
            stream = await create(client, stream=True)
            if events:
                seen = 0
                async for _ in stream:
                    seen += 1
                    if seen == events:
                        break
            del stream, client
            gc.collect()
            await asyncio.sleep(0.05)

    if asynchronous:
        asyncio.run(leave())
        return
    with lab.client(sdk) as client:
        stream = create(client, stream=True)
        for _ in range(events):
            next(stream)
        del stream
        gc.collect()
        lab.rows(1)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@sdks
def test_a_stream_that_nobody_reads_is_released_when_it_is_collected(lab, sdk, asynchronous):
    lab.provider.script([PACED])
    abandon(lab, sdk, asynchronous=asynchronous, events=0)
    row = lab.row()
    assert (row.state, row.flags, row.cost_micros) == ("released", ["abandoned"], None)
    assert lab.figures()["cost"] == (0, 0)
    (entry,) = lab.provider.wait_until_quiet()
    assert entry.outcome == "disconnected"


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(("sdk", "events"), [("openai", 3), ("anthropic", 4)])
def test_a_stream_dropped_in_the_middle_is_charged_for_what_came(lab, sdk, events, asynchronous):
    lab.provider.script([PACED])
    abandon(lab, sdk, asynchronous=asynchronous, events=events)
    row = lab.row()
    assert (row.state, row.output_tokens) == ("settled", text_tokens(" windy" * 8, sdk))
    assert set(row.flags) - {"abandoned"} == {"interrupted"}
    assert lab.figures()["calls"] == (1, 0)


@pytest.mark.parametrize("read_by", ["sdk", "http"])
def test_a_stream_that_the_collector_ends_asks_no_store_there(lab, read_by, monkeypatch):
    """The collector may run while this thread holds a lock that the store needs."""
    waiting: list[Callable[[], object]] = []
    lab.provider.script([PACED])
    with lab.client("openai") as client:
        stream = create(client, stream=True)
        events = iter(stream) if read_by == "sdk" else stream.response.iter_bytes()
        kept: dict[str, object] = {"stream": stream, "events": events}
        for _ in range(3):
            next(events)
        kept["itself"] = kept
        lab.store.asked.clear()
        monkeypatch.setattr(threads, "later", waiting.append)
        del stream, events, kept
        gc.collect()
        assert lab.store.asked == {}
        for finish in waiting:
            finish()
    assert lab.store.asked == {"settle": 1}
    assert "interrupted" in lab.row().flags


def test_a_sync_break_in_the_loop_settles_once_the_stream_is_closed(lab):
    lab.provider.script([PACED])
    with lab.client("openai") as client:
        stream = create(client, stream=True)
        for event in stream:
            if text_of(event):
                break
        stream.close()
        stream.close()
    assert lab.row().flags == ["interrupted"]


def test_a_caller_who_leaves_at_the_last_figures_is_charged_them(lab):
    lab.provider.script([Reply(input_tokens=40, output_tokens=9, text=" windy" * 8)])
    with lab.client("anthropic") as client, create(client, stream=True) as stream:
        for event in stream:
            if event.type == "message_delta":
                break
    assert (lab.row().flags, lab.row().output_tokens) == ([], 9)


def test_a_caller_who_leaves_between_the_finish_and_the_usage_is_charged_as_reserved(lab):
    with answering(httpx2, [FINISH, USAGE]) as http:
        client = allowance.meter(http, provider="openai")
        body = {"model": GPT, "messages": ASK, "stream": True, "max_tokens": 100}
        url = "http://127.0.0.1/v1/chat/completions"
        with client.stream("POST", url, json=body) as response:
            next(response.iter_raw())
    row = lab.row()
    assert (row.flags, row.cost_micros) == (["estimated", "usage_missing"], RESERVED["openai"])


def test_a_long_stream_keeps_its_hold():
    with Lab(RESERVATION_SECONDS=1.5) as lab:
        lab.provider.script([Reply(text=" windy" * 16, chunks=7, chunk_delay_seconds=0.3)])
        expired = 0
        with lab.client("openai") as client:
            for _ in create(client, stream=True):
                expired += expire(timezone.now())
        assert expired == 0
        row = lab.row()
        assert (row.state, row.flags) == ("settled", [])
        assert (row.expires_at - row.created_at).total_seconds() > 2


def test_the_streaming_response_helper_read_to_the_end_in_part_and_not_at_all(lab):
    lab.provider.script(default=Reply(input_tokens=40, output_tokens=9))
    fixed = {"model": GPT, "messages": ASK, "max_completion_tokens": 100}
    with lab.client("openai") as client:
        create_streaming = client.chat.completions.with_streaming_response.create
        with create_streaming(**fixed) as response:
            assert json.loads(response.read())["usage"]["completion_tokens"] == 9
        with create_streaming(**fixed) as response:
            assert next(response.iter_bytes(10))
        with create_streaming(**fixed):
            pass
    whole, _, unread = lab.rows(3)
    assert (whole.cost_micros, whole.flags) == (58, [])
    assert (unread.cost_micros, unread.flags) == (RESERVED["openai"], ["uncertain"])


def test_an_event_stream_that_is_no_json_is_charged_as_reserved(lab):
    lab.provider.script([Reply(body="data: {broken\n\ndata: [DONE]\n\n")])
    with lab.client("openai") as client, pytest.raises(json.JSONDecodeError):
        list(create(client, stream=True))
    row = lab.row()
    assert row.state == "settled"
    assert row.cost_micros == RESERVED["openai"]
    assert row.input_tokens == ESTIMATE["openai"].input_tokens


def test_an_anthropic_stream_through_plain_http(lab):
    lab.provider.script([Reply(input_tokens=40, output_tokens=9)])
    url = f"{lab.provider.anthropic_url}/v1/messages"
    body = {"model": CLAUDE, "messages": ASK, "max_tokens": 100, "stream": True}
    with httpx2.Client() as http:
        client = allowance.meter(http, provider="anthropic")
        headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
        with client.stream("POST", url, json=body, headers=headers) as response:
            lines = list(response.iter_lines())
    assert "event: message_stop" in lines
    assert lab.row().cost_micros == 255
