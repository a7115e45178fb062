from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from token_allowance.estimate import message_tokens, text_tokens
from token_allowance.providers.adapter import Report
from token_allowance.providers.anthropic import Messages
from token_allowance.providers.anthropic_usage import read_usage
from token_allowance.usage import Usage

MESSAGES = Messages()


def stream(*events: Any) -> Report:
    reader = MESSAGES.reader()
    for event in events:
        if isinstance(event, bytes):
            reader.event(event)
        else:
            reader.event(json.dumps(event).encode(), event["type"])
    return reader.report()


def start(**usage: Any) -> dict[str, Any]:
    return {"type": "message_start", "message": {"id": "msg_1", "model": "claude", "usage": usage}}


def text(content: str) -> dict[str, Any]:
    return block_delta({"type": "text_delta", "text": content})


def block_delta(delta: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": delta}


def end(reason: str = "end_turn", **usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


STOP = {"type": "message_stop"}
PING = {"type": "ping"}
ERROR = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


# Usage objects


def test_case_c01_all_input_is_the_sum_of_three() -> None:
    counts = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 12304,
        "cache_read_input_tokens": 0,
        "output_tokens": 550,
    }
    usage, flags = read_usage(counts)
    assert usage == Usage(12307, 550, cache_write_tokens=12304)
    assert usage.total_tokens == 12857
    assert flags == ("cache_ttl_assumed",)


def test_case_c02_a_cached_call_counts_all_its_tokens() -> None:
    counts = {
        "input_tokens": 19,
        "cache_read_input_tokens": 35000,
        "cache_creation_input_tokens": 4000,
        "output_tokens": 200,
    }
    usage, _ = read_usage(counts)
    assert usage == Usage(39019, 200, cache_read_tokens=35000, cache_write_tokens=4000)
    assert usage.total_tokens == 39219


def test_case_c04_native_shape_holds_the_cache_beside_the_input() -> None:
    counts = {
        "input_tokens": 2000,
        "cache_read_input_tokens": 500,
        "cache_creation_input_tokens": 300,
    }
    usage, _ = read_usage(counts)
    assert usage == Usage(2800, cache_read_tokens=500, cache_write_tokens=300)


@pytest.mark.parametrize(
    ("total", "short", "long", "write", "write_1h", "flags"),
    [
        (344_139, 0, 344_139, 344_139, 344_139, ()),
        (1_000_000, 600_000, 400_000, 1_000_000, 400_000, ()),
        (1_000_000, None, None, 1_000_000, 0, ("cache_ttl_assumed",)),
        (1_000_000, 100_000, 400_000, 1_000_000, 400_000, ()),
        (1_000_000, None, 400_000, 1_000_000, 400_000, ()),
        (None, 100, 50, 150, 50, ()),
        (0, None, None, 0, 0, ()),
        (100, 100, 50, 150, 50, ("anomaly",)),
    ],
)
def test_case_c05_cache_writes_by_lifetime(
    total: int | None,
    short: int | None,
    long: int | None,
    write: int,
    write_1h: int,
    flags: tuple[str, ...],
) -> None:
    split = {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long}
    counts = {
        "input_tokens": 1,
        "cache_creation_input_tokens": total,
        "cache_creation": None if short is long is None else split,
    }
    usage = Usage(1 + write, cache_write_tokens=write, cache_write_1h_tokens=write_1h)
    assert read_usage(counts) == (usage, flags)


def test_thinking_is_within_the_output() -> None:
    counts = {
        "input_tokens": 12,
        "output_tokens": 300,
        "output_tokens_details": {"thinking_tokens": 120},
    }
    assert read_usage(counts) == (Usage(12, 300, reasoning_tokens=120), ())
    counts["output_tokens_details"] = {"thinking_tokens": 400}
    assert read_usage(counts) == (Usage(12, 300, reasoning_tokens=300), ("anomaly",))


@pytest.mark.parametrize(
    ("counts", "usage", "flags"),
    [
        ({}, None, ()),
        ({"input_tokens": None, "output_tokens": 0}, None, ()),
        ({"input_tokens": "10", "output_tokens": 5.0}, Usage(10, 5), ()),
        ({"input_tokens": -1, "output_tokens": 5}, Usage(0, 5), ("anomaly", "input_missing")),
        ({"input_tokens": 2**41, "cache_read_input_tokens": 7}, Usage(7, 0, 7), ("anomaly",)),
    ],
)
def test_case_c18_null_string_and_impossible_figures(
    counts: dict[str, Any], usage: Usage | None, flags: tuple[str, ...]
) -> None:
    assert read_usage(counts) == (usage, flags)


# Whole answers


def test_a_whole_answer() -> None:
    answer = {
        "id": "msg_1",
        "type": "message",
        "model": "claude-sonnet-5",
        "content": [
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}},
        ],
        "usage": {
            "input_tokens": 9548,
            "output_tokens": 528,
            "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 0},
            "service_tier": "priority",
            "inference_geo": "us",
        },
    }
    written = text_tokens("Let me look.weather", "anthropic")
    assert MESSAGES.response(json.dumps(answer).encode()) == Report(
        usage=Usage(9548, 528, web_searches=2),
        model="claude-sonnet-5",
        service_tier="priority",
        request_id="msg_1",
        raw={
            "input_tokens": 9548,
            "output_tokens": 528,
            "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 0},
        },
        delivered=True,
        delivered_tokens=written + message_tokens({"city": "Rome"}, "anthropic"),
        complete=True,
        input_reported=True,
    )


@pytest.mark.parametrize("usage", [None, {}, {"input_tokens": 0, "output_tokens": 0}])
def test_a_whole_answer_without_usage_is_flagged(usage: object) -> None:
    answer = {"type": "message", "content": [{"type": "text", "text": "Hi"}], "usage": usage}
    report = MESSAGES.response(json.dumps(answer).encode())
    assert (report.usage, report.flags) == (None, ("usage_missing",))
    assert report.delivered
    assert report.complete


@pytest.mark.parametrize("body", [b"<html>", b'{"content": [', b"null"])
def test_an_unreadable_answer_was_delivered_and_is_never_silently_free(body: bytes) -> None:
    report = MESSAGES.response(body)
    assert report.usage is None
    assert report.flags == ("unparsed", "usage_missing")
    assert report.delivered
    assert report.complete


def test_an_error_in_the_body_of_a_success_is_a_failure() -> None:
    report = MESSAGES.response(json.dumps(ERROR).encode())
    assert report.failed
    assert not report.complete


# Streams


@pytest.mark.parametrize(
    ("events", "usage"),
    [
        ([start(input_tokens=25, output_tokens=1), end(output_tokens=15)], Usage(25, 15)),
        ([start(input_tokens=27), end(input_tokens=27, output_tokens=47)], Usage(27, 47)),
        (
            [
                start(input_tokens=25),
                end(input_tokens=None, output_tokens=10),
                end(output_tokens=15),
            ],
            Usage(25, 15),
        ),
    ],
    ids=["a", "b", "d"],
)
def test_case_c28_per_field_the_last_figure_wins(events: list[Any], usage: Usage) -> None:
    report = stream(*events, STOP)
    assert (report.usage, report.complete, report.input_reported) == (usage, True, True)
    assert report.flags == ()


def test_case_c28c_the_input_of_server_tools_replaces_that_of_the_start() -> None:
    report = stream(
        start(input_tokens=472, output_tokens=2),
        end(input_tokens=10682, output_tokens=510, server_tool_use={"web_search_requests": 1}),
        STOP,
    )
    assert report.usage == Usage(10682, 510, web_searches=1)
    assert report.raw["server_tool_use"] == {"web_search_requests": 1}


def test_the_split_of_the_start_outlives_a_delta_without_one() -> None:
    split = {"ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 100}
    report = stream(
        start(input_tokens=12, cache_creation_input_tokens=500, cache_creation=split),
        end(input_tokens=12, cache_creation_input_tokens=500, output_tokens=300),
    )
    assert report.usage == Usage(512, 300, cache_write_tokens=500, cache_write_1h_tokens=100)
    assert report.flags == ()


def test_case_c34_an_error_in_mid_stream_keeps_the_reported_input() -> None:
    report = stream(start(input_tokens=20, cache_read_input_tokens=50_000), ERROR)
    assert report.usage == Usage(50_020, 0, cache_read_tokens=50_000)
    assert report.failed
    assert report.input_reported
    assert not report.complete
    assert not report.delivered


def test_case_c38_the_placeholder_of_the_start_is_no_output() -> None:
    report = stream(start(input_tokens=25, output_tokens=1), PING, *[text("word " * 4)] * 60)
    assert report.usage == Usage(25, 0)
    assert report.input_reported
    assert not report.complete
    assert report.delivered
    assert report.delivered_tokens == text_tokens("word " * 240, "anthropic")


def test_case_c36_half_written_tool_input_is_measured_and_not_parsed() -> None:
    tool = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}
    report = stream(
        start(input_tokens=1800, output_tokens=1),
        {"type": "content_block_start", "index": 0, "content_block": tool},
        block_delta({"type": "input_json_delta", "partial_json": ""}),
        block_delta({"type": "input_json_delta", "partial_json": '{"city":"Rom'}),
        end("max_tokens", input_tokens=1800, output_tokens=4096),
        STOP,
    )
    assert report.usage == Usage(1800, 4096)
    assert report.flags == ()
    assert report.delivered_tokens == text_tokens('weather{"city":"Rom', "anthropic")


def test_case_c37_interleaved_streams_keep_their_own_usage() -> None:
    a, b = MESSAGES.reader(), MESSAGES.reader()
    for reader, input_tokens in [(a, 10), (b, 20)]:
        reader.event(json.dumps(start(input_tokens=input_tokens)).encode())
    for reader, output_tokens in [(a, 1), (b, 1), (a, 2), (b, 2), (a, 3)]:
        reader.event(json.dumps(end(output_tokens=output_tokens)).encode())
    assert a.report().usage == Usage(10, 3)
    assert b.report().usage == Usage(20, 2)


def test_an_end_without_any_output_figure_is_an_answer_without_usage() -> None:
    report = stream(start(input_tokens=25, output_tokens=1), text("Hi"), STOP)
    assert (report.usage, report.complete) == (None, True)
    assert report.flags == ("usage_missing",)
    assert report.raw == {"input_tokens": 25}


def test_usage_that_text_follows_is_not_the_end() -> None:
    report = stream(start(input_tokens=25), end(output_tokens=3), text("more"))
    assert (report.usage, report.complete) == (Usage(25, 3), False)


def test_thinking_is_delivered_and_its_signature_is_not() -> None:
    report = stream(
        block_delta({"type": "thinking_delta", "thinking": "Hm."}),
        block_delta({"type": "signature_delta", "signature": "EqQBCgIYAhIM"}),
    )
    assert report.delivered_tokens == text_tokens("Hm.", "anthropic")


def test_the_tier_served_is_the_last_that_is_named() -> None:
    report = stream(start(input_tokens=1, service_tier="standard"), end(output_tokens=1))
    assert (report.service_tier, report.model, report.request_id) == ("standard", "claude", "msg_1")


def test_the_name_of_an_event_stands_in_for_a_missing_type() -> None:
    reader = MESSAGES.reader()
    reader.event(b'{"error":{"message":"Overloaded"}}', "error")
    assert reader.report().failed


@pytest.mark.parametrize("data", [b"{", b"null", b"\xff", b"[DONE]"])
def test_malformed_events_are_flagged_and_what_follows_is_read(data: bytes) -> None:
    report = stream(start(input_tokens=10), data, end(output_tokens=5))
    assert report.usage == Usage(10, 5)
    assert report.flags == ("unparsed",)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("message", "usage", "delta", "content_block", "input", "text", "model"),
                    *("output_tokens", "input_tokens", "cache_creation", "service_tier"),
                ]
            ),
            children,
            max_size=4,
        )
    ),
    max_leaves=12,
)
KINDS = ["message_start", "message_delta", "content_block_start", "content_block_delta", "ping"]


@given(st.lists(st.tuples(st.sampled_from(KINDS), JSON), max_size=4))
def test_events_of_any_shape_raise_nothing(events: list[tuple[str, object]]) -> None:
    reader = MESSAGES.reader()
    for name, value in events:
        reader.event(json.dumps(value).encode(), name)
    assert reader.report().delivered_tokens >= 0


# Requests


def test_a_request_counts_system_messages_and_tools() -> None:
    parts: dict[str, Any] = {
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": "How is the weather in Rome?"}],
        "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
    }
    body = {"model": "claude", "max_tokens": 400, "stream": True, "service_tier": "auto", **parts}
    request = MESSAGES.request(body)
    sent = sum(message_tokens(part, "anthropic") for part in parts.values())
    assert request.input_tokens == sent + 500  # a request with tools has a prompt of Anthropic's
    assert (request.model, request.max_output_tokens, request.choices) == ("claude", 400, 1)
    assert (request.stream, request.service_tier, request.usage_requested) == (True, "auto", True)


def test_a_request_without_a_model_says_so() -> None:
    with pytest.raises(ValueError, match="names no model"):
        MESSAGES.request({"max_tokens": 5})


def test_a_stream_needs_no_question_and_has_no_extra_event() -> None:
    assert MESSAGES.ask_usage({"stream": True}) is None
    assert not MESSAGES.is_usage_only(b'{"choices":[],"usage":{"input_tokens":1}}')
