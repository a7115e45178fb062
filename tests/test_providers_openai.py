from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from token_allowance.estimate import message_tokens, text_tokens
from token_allowance.providers.adapter import Report
from token_allowance.providers.openai import ChatCompletions
from token_allowance.providers.openai_usage import read_usage
from token_allowance.providers.sse import Framer
from token_allowance.usage import Usage

CHAT = ChatCompletions()


def stream(*chunks: Any) -> Report:
    reader = CHAT.reader()
    for chunk in chunks:
        reader.event(chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode())
    return reader.report()


def text(content: str | None = None, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    if content is not None:
        delta["content"] = content
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None}


def spent(prompt: int, completion: int) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {"choices": [], "usage": {**counts, "total_tokens": prompt + completion}}


# Usage objects


@pytest.mark.parametrize("cached", [41518, 41518.0, "41518"], ids=repr)
def test_case_c03_cached_tokens_are_within_the_prompt(cached: object) -> None:
    counts = {
        "prompt_tokens": 44341,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens": 0,
    }
    assert read_usage(counts) == (Usage(44341, 0, cache_read_tokens=41518), ())


def test_case_c04_gateway_shape_holds_cache_reads_and_writes_within_the_prompt() -> None:
    counts = {"prompt_tokens": 2000, "cached_tokens": 500, "cache_creation_tokens": 300}
    usage = Usage(2000, 0, cache_read_tokens=500, cache_write_tokens=300)
    assert read_usage(counts) == (usage, ())


@pytest.mark.parametrize(
    ("counts", "usage"),
    [
        ({"prompt_tokens": None, "total_tokens": 7}, Usage(7)),
        ({"prompt_tokens": "10"}, Usage(10)),
        ({"prompt_tokens": 8, "total_tokens": 8}, Usage(8)),
        ({"prompt_tokens": 8, "completion_tokens": None, "total_tokens": 11}, Usage(8, 3)),
        ({}, None),
        ({"prompt_tokens": None, "completion_tokens": None, "total_tokens": None}, None),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, None),
    ],
)
def test_case_c18_null_missing_and_string_figures(counts: Any, usage: Usage | None) -> None:
    assert read_usage(counts) == (usage, ())


def test_case_c19_more_cached_than_prompt_is_clamped_and_flagged() -> None:
    counts = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 150}}
    assert read_usage(counts) == (Usage(100, cache_read_tokens=100), ("anomaly",))


def test_cache_writes_share_the_prompt_with_cache_reads() -> None:
    details = {"cached_tokens": 80, "cache_write_tokens": 50}
    usage, flags = read_usage({"prompt_tokens": 100, "prompt_tokens_details": details})
    assert usage == Usage(100, cache_read_tokens=80, cache_write_tokens=20)
    assert flags == ("anomaly",)


@pytest.mark.parametrize("bad", [-5, 2**40 + 1, 10.5, "many", True, [1], float("nan"), 1e300])
def test_a_figure_that_cannot_be_right_counts_as_missing(bad: object) -> None:
    counts = {"prompt_tokens": 10, "completion_tokens": bad, "total_tokens": 14}
    assert read_usage(counts) == (Usage(10, 4), ("anomaly",))


def test_reasoning_is_within_the_completion_of_openai() -> None:
    counts = {
        "prompt_tokens": 1200,
        "completion_tokens": 300,
        "total_tokens": 1500,
        "prompt_tokens_details": {"cached_tokens": 1024, "cache_write_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 128},
    }
    usage = Usage(1200, 300, cache_read_tokens=1024, reasoning_tokens=128)
    assert read_usage(counts) == (usage, ())


@pytest.mark.parametrize(("total", "flags"), [(1428, ()), (None, ())])
def test_reasoning_is_beside_the_completion_where_the_total_says_so(
    total: int | None, flags: tuple[str, ...]
) -> None:
    """xAI's reading; without a total it shows only if there is more reasoning than completion."""
    counts = {
        "prompt_tokens": 1200,
        "completion_tokens": 100,
        "completion_tokens_details": {"reasoning_tokens": 128},
        "total_tokens": total,
    }
    assert read_usage(counts) == (Usage(1200, 228, reasoning_tokens=128), flags)


def test_thoughts_that_only_the_total_shows_are_output_and_flagged() -> None:
    counts = {"prompt_tokens": 15, "completion_tokens": 359, "total_tokens": 1035}
    assert read_usage(counts) == (Usage(15, 1020), ("anomaly",))


def test_a_total_that_fits_no_reading_changes_nothing_and_is_flagged() -> None:
    counts = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 50}
    assert read_usage(counts) == (Usage(100, 10), ("anomaly",))
    counts = {"prompt_tokens": 100, "cached_tokens": 30, "completion_tokens": 10}
    usage, flags = read_usage({**counts, "total_tokens": 140})
    assert usage == Usage(100, 10, cache_read_tokens=30)
    assert flags == ("anomaly",)


def test_deepseek_names_its_cache_hits_otherwise() -> None:
    counts = {"prompt_tokens": 64, "prompt_cache_hit_tokens": 60, "prompt_cache_miss_tokens": 4}
    assert read_usage(counts) == (Usage(64, cache_read_tokens=60), ())


def test_an_output_without_any_input_is_flagged() -> None:
    counts = {"prompt_tokens": 0, "completion_tokens": 42, "total_tokens": 42}
    assert read_usage(counts) == (Usage(0, 42), ("input_missing",))


COUNT = st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=4), st.booleans())
FIGURE = COUNT | st.dictionaries(
    st.sampled_from(["cached_tokens", "cache_write_tokens", "reasoning_tokens"]), COUNT
)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens"),
                *("prompt_tokens_details", "completion_tokens_details", "cache_creation_tokens"),
            ]
        ),
        FIGURE,
    )
)
def test_any_usage_object_gives_parts_within_their_whole(counts: dict[str, Any]) -> None:
    usage, _ = read_usage(counts)
    if usage:
        assert usage.cache_read_tokens + usage.cache_write_tokens <= usage.input_tokens
        assert usage.reasoning_tokens <= usage.output_tokens


# Whole answers


def test_a_whole_answer() -> None:
    message = {"role": "assistant", "content": "Good morning."}
    answer = {
        "id": "chatcmpl-1",
        "model": "gpt-5-mini-2026-01-01",
        "service_tier": "flex",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15},
    }
    assert CHAT.response(json.dumps(answer).encode()) == Report(
        usage=Usage(12, 3),
        model="gpt-5-mini-2026-01-01",
        service_tier="flex",
        request_id="chatcmpl-1",
        raw={"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15},
        delivered=True,
        delivered_tokens=text_tokens("Good morning.", "openai"),
        complete=True,
        input_reported=True,
    )


def test_a_whole_answer_without_usage_is_flagged() -> None:
    report = CHAT.response(b'{"choices":[{"message":{"content":"Hi"}}],"usage":{}}')
    assert (report.usage, report.flags) == (None, ("usage_missing",))
    assert report.delivered
    assert report.complete


@pytest.mark.parametrize("body", [b"<html>", b'{"choices": [', b"[]", b"\xff", b"[" * 100_000])
def test_an_unreadable_answer_was_delivered_and_is_never_silently_free(body: bytes) -> None:
    report = CHAT.response(body)
    assert report.usage is None
    assert report.flags == ("unparsed", "usage_missing")
    assert report.delivered
    assert report.complete


def test_an_error_in_the_body_of_a_success_is_a_failure() -> None:
    report = CHAT.response(b'{"error":{"message":"overloaded","code":502}}')
    assert report.failed
    assert not report.complete
    assert not report.delivered


def test_the_raw_figures_hold_numbers_and_no_text() -> None:
    usage = {
        "prompt_tokens": 9171,
        "completion_tokens": 113,
        "cost": 0,
        "is_byok": True,
        "note": "the prompt was: secret",
        "the prompt was: secret": 1,
        "cost_details": {"upstream_inference_cost": 0.0360795, "currency": "USD", "x": None},
        "texts": ["secret"],
        "empty": {"note": "secret"},
        "deep": {"a": {"b": {"c": {"d": 1}}}},
        "odd": float("nan"),
        "huge": 10**400,
    }
    report = CHAT.response(json.dumps({"usage": usage}).encode())
    assert report.usage == Usage(9171, 113)
    assert report.raw == {
        "prompt_tokens": 9171,
        "completion_tokens": 113,
        "cost": 0,
        "is_byok": True,
        "cost_details": {"upstream_inference_cost": 0.0360795},
    }


def test_names_are_short_and_printable_or_dropped() -> None:
    answer = {"model": "m" * 201, "id": "a\x00b", "service_tier": {"a": 1}}
    report = CHAT.response(json.dumps(answer).encode())
    assert (report.model, report.request_id, report.service_tier) == ("", "", "")


# Streams


def test_case_c29_usage_counts_also_beside_a_choice() -> None:
    report = stream(
        b'{"choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":16111,'
        b'"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":15872}}}'
    )
    assert report.usage == Usage(16111, 2, cache_read_tokens=15872)
    assert report.complete


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}},
        {"choices": [], "x_groq": {"usage": {"prompt_tokens": 10, "completion_tokens": 5}}},
        {"choices": [{"usage": {"prompt_tokens": 10, "completion_tokens": 5}}]},
    ],
)
def test_usage_is_found_wherever_a_dialect_puts_it(chunk: dict[str, Any]) -> None:
    assert stream(text("Hi"), chunk).usage == Usage(10, 5)


def test_the_last_usage_that_says_anything_wins() -> None:
    report = stream(spent(10, 1), spent(10, 2), spent(0, 0), {"choices": [], "usage": None})
    assert report.usage == Usage(10, 2)


def test_a_stream_ends_with_its_marker() -> None:
    report = stream(text("", role="assistant"), text("Hi"), text(finish="stop"), b"[DONE]")
    assert report.complete
    assert report.flags == ("usage_missing",)
    assert report.usage is None


@pytest.mark.parametrize("last", [b"[DONE]", spent(10, 1), text(finish="stop")])
def test_each_final_marker_completes_a_stream(last: Any) -> None:
    assert stream(text("Hi"), last).complete


def test_a_cut_stream_is_not_complete() -> None:
    report = stream(text("", role="assistant"), text("Hi"))
    assert not report.complete
    assert report.delivered
    assert report.flags == ()


def test_one_of_two_choices_is_not_the_whole_answer() -> None:
    second = {"choices": [{"index": 1, "delta": {"content": "a"}, "finish_reason": None}]}
    assert not stream(text("Hi"), second, text(finish="stop")).complete


def test_usage_in_every_chunk_is_final_only_at_the_end() -> None:
    early = text("Hi") | {"usage": {"prompt_tokens": 10, "completion_tokens": 1}}
    late = text("!", finish="stop") | {"usage": {"prompt_tokens": 10, "completion_tokens": 2}}
    cut = stream(early)
    assert (cut.usage, cut.complete, cut.input_reported) == (Usage(10, 1), False, True)
    whole = stream(early, late)
    assert (whole.usage, whole.complete) == (Usage(10, 2), True)


@pytest.mark.parametrize(
    "chunk",
    [
        {"error": {"message": "overloaded", "code": 503}},
        {"error": "overloaded"},
        text(finish="error"),
    ],
)
def test_case_c34_an_error_inside_the_stream_is_a_failure(chunk: dict[str, Any]) -> None:
    report = stream(text("Hi"), chunk, b"[DONE]")
    assert report.failed
    assert not report.complete


@pytest.mark.parametrize("data", [b"overloaded", b'{"message":"overloaded"}', b""])
def test_an_event_named_error_is_a_failure(data: bytes) -> None:
    reader = CHAT.reader()
    reader.event(data, "error")
    assert reader.report().failed


@pytest.mark.parametrize("data", [b"{", b"null", b"[1]", b"\xff\xfe", b'"x"'])
def test_malformed_events_are_flagged_and_what_follows_is_read(data: bytes) -> None:
    report = stream(data, spent(10, 5))
    assert report.usage == Usage(10, 5)
    assert report.flags == ("unparsed",)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("choices", "delta", "message", "usage", "x_groq", "tool_calls", "function"),
                    *("index", "content", "audio", "error", "finish_reason", "id", "model"),
                ]
            ),
            children,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_an_event_of_any_shape_raises_nothing(value: object) -> None:
    report = stream(json.dumps(value).encode())
    assert report.delivered_tokens >= 0


def test_case_c37_interleaved_streams_keep_their_own_usage() -> None:
    a, b = CHAT.reader(), CHAT.reader()
    for reader, prompt, completion in [(a, 10, 1), (b, 20, 1), (a, 10, 2), (b, 20, 2), (a, 10, 3)]:
        reader.event(json.dumps(spent(prompt, completion)).encode())
    assert a.report().usage == Usage(10, 3)
    assert b.report().usage == Usage(20, 2)


def test_case_c35_split_reads_give_the_same_usage() -> None:
    body = b'data: {"usage":{"prompt_tokens":10,"completion_tokens":5}}\r\n\r\n: keep-alive\r\n\r\n'
    body += 'data: {"choices":[{"delta":{"content":"é"}}]}\r\n\r\ndata: [DONE]'.encode()
    for at in range(len(body) + 1):
        framer, reader = Framer(), CHAT.reader()
        for frame in framer.feed(body[:at]) + framer.feed(body[at:]) + framer.end():
            reader.event(frame.data, frame.event)
        report = reader.report()
        assert (report.usage, report.complete, report.flags) == (Usage(10, 5), True, ())
        assert report.delivered_tokens == text_tokens("é", "openai")


# What was delivered


def test_many_small_deltas_are_estimated_as_the_text_they_make() -> None:
    words = ["The ", "quick ", "brown ", "fox", ", ", "7 ", "你好", ".\n"] * 500
    whole = text_tokens("".join(words), "openai")
    report = stream(*(text(word) for word in words))
    assert whole <= report.delivered_tokens <= whole * 1.002 + 1


def test_an_empty_delta_delivers_nothing() -> None:
    report = stream(text("", role="assistant"), text(None, tool_calls=[]), text(content=None))
    assert not report.delivered
    assert report.delivered_tokens == 0


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "lookup"},
        {"content": [{"type": "text", "text": "lookup"}]},
        {"refusal": "lookup"},
        {"reasoning_content": "lookup"},
        {"reasoning": "lookup", "reasoning_content": "lookup"},
        {"audio": {"transcript": "lookup", "data": "UklGRg=="}},
        {"function_call": {"name": "lookup", "arguments": ""}},
        {"tool_calls": [{"index": 0, "function": {"arguments": "lookup"}}]},
        {"tool_calls": [{"index": 0, "custom": {"name": "look", "input": "up"}}]},
    ],
)
def test_all_that_the_model_wrote_is_delivered_once(delta: dict[str, Any]) -> None:
    report = stream(text(**delta))
    assert report.delivered
    assert report.delivered_tokens == text_tokens("lookup", "openai")


def test_case_c36_half_written_tool_arguments_are_measured_and_not_parsed() -> None:
    call = {"index": 0, "function": {"name": "", "arguments": '{"city":"Rom'}}
    report = stream(text(tool_calls=[call]), text(finish="length"), spent(1800, 4096))
    assert report.usage == Usage(1800, 4096)
    assert report.flags == ()
    assert report.delivered_tokens == text_tokens('{"city":"Rom', "openai")


# Requests


def test_a_request_counts_messages_tools_and_schemas() -> None:
    parts: dict[str, Any] = {
        "messages": [{"role": "user", "content": "How is the weather in Rome?"}],
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": {}}}],
        "functions": [{"name": "old"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer"}},
    }
    request = CHAT.request({"model": "gpt-5-mini", **parts, "n": 3, "service_tier": "flex"})
    assert request.input_tokens == sum(message_tokens(part, "openai") for part in parts.values())
    assert (request.model, request.choices, request.service_tier) == ("gpt-5-mini", 3, "flex")
    assert (request.max_output_tokens, request.stream) == (None, False)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": 8000}, 8000),
        ({"max_completion_tokens": 8000}, 8000),
        ({"max_completion_tokens": 100, "max_tokens": 8000}, 8000),
        ({"max_tokens": "8000"}, 8000),
        ({"max_tokens": 0}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": 999_999_999}, 999_999_999),
        ({"max_tokens": 10**30}, 2**40),
    ],
)
def test_case_c42_the_maximum_a_request_asks_for(fields: Any, limit: int | None) -> None:
    assert CHAT.request({"model": "m", "messages": [], **fields}).max_output_tokens == limit


@pytest.mark.parametrize("n", [None, 0, -3, "x", [], True])
def test_an_unusable_number_of_choices_is_one(n: object) -> None:
    assert CHAT.request({"model": "m", "n": n}).choices == 1


@pytest.mark.parametrize("body", [{}, {"model": ""}, {"model": None}, {"model": 5}])
def test_a_request_without_a_model_says_so(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="names no model"):
        CHAT.request(body)


def test_case_c30_a_stream_is_asked_for_its_usage() -> None:
    body = {"model": "m", "stream": True, "stream_options": {"include_obfuscation": False}}
    asked = CHAT.ask_usage(body)
    assert asked == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_obfuscation": False, "include_usage": True},
    }
    assert body["stream_options"] == {"include_obfuscation": False}
    assert not CHAT.request(body).usage_requested
    assert CHAT.request(asked).usage_requested


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, "odd"])
def test_a_caller_who_did_not_ask_gets_the_question_added(options: object) -> None:
    asked = CHAT.ask_usage({"stream": True, "stream_options": options})
    assert asked == {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m"},
        {"model": "m", "stream": False},
        {"model": "m", "stream": True, "stream_options": {"include_usage": True}},
    ],
)
def test_nothing_is_added_where_usage_comes_anyway(body: dict[str, Any]) -> None:
    assert CHAT.ask_usage(body) is None


@pytest.mark.parametrize(
    ("data", "extra"),
    [
        (b'{"choices":[],"usage":{"prompt_tokens":1}}', True),
        (b'{"usage": {"prompt_tokens": 1}, "choices": [ ]}', True),
        (b'{"choices":[],"usage":null}', False),
        (b'{"choices":[],"prompt_filter_results":[]}', False),
        (b'{"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}', False),
        (b'{"usage":{"prompt_tokens":1}}', False),
        (b'{"choices":[],"usage":', False),
        (b"[DONE]", False),
    ],
)
def test_only_the_chunk_that_we_caused_is_hidden(data: bytes, extra: bool) -> None:
    assert CHAT.is_usage_only(data) is extra
