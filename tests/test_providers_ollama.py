"""Ollama's own API: what requests ask for, what answers tell."""

from __future__ import annotations

import json
from typing import Any

import pytest

from token_allowance.estimate import message_tokens
from token_allowance.providers.adapter import Adapter, Report
from token_allowance.providers.ollama import Ollama
from token_allowance.usage import Usage

ADAPTER: Adapter = Ollama()
EMBEDS: Adapter = Ollama(embeds=True)
CHAT = {"model": "llama3.2", "messages": [{"role": "user", "content": "why is the sky blue?"}]}
FINAL = {
    "model": "llama3.2",
    "message": {"role": "assistant", "content": ""},
    "done": True,
    "done_reason": "stop",
    "total_duration": 5_191_566_416,
    "prompt_eval_count": 26,
    "eval_count": 298,
}
PIECE = {"model": "llama3.2", "message": {"role": "assistant", "content": "The"}, "done": False}
PICTURE = "iVBORw0KGgo" * 4000


def read(*parts: dict[str, Any] | bytes) -> Report:
    reader = ADAPTER.reader()
    for part in parts:
        reader.event(part if isinstance(part, bytes) else json.dumps(part).encode())
    return reader.report()


def whole(answer: Any, adapter: Adapter = ADAPTER) -> Report:
    return adapter.response(answer if isinstance(answer, bytes) else json.dumps(answer).encode())


@pytest.mark.parametrize(
    ("options", "maximum"),
    [
        (None, None),
        ({"num_predict": 128}, 128),
        ({"num_predict": -1}, None),  # without end
        ({"num_predict": -2}, None),  # until the context is full
        ({"temperature": 0.2}, None),
        ([1], None),
    ],
)
def test_num_predict_is_the_maximum_of_the_answer_case_c42(options, maximum):
    asked = ADAPTER.request({**CHAT, "options": options})
    assert (asked.model, asked.max_output_tokens, asked.choices) == ("llama3.2", maximum, 1)


@pytest.mark.parametrize(("given", "streams"), [({}, True), ({"stream": False}, False)])
def test_a_request_streams_unless_it_says_otherwise(given, streams):
    assert ADAPTER.request({**CHAT, **given}).stream is streams


def test_everything_that_the_model_reads_is_counted():
    asked = {
        "system": "answer in verse",
        "prompt": "why is the sky blue?",
        "suffix": "and the sea?",
        "template": "{{ .Prompt }}",
        "format": {"type": "object"},
    }
    alone = [
        ADAPTER.request({"model": "m", name: value}).input_tokens for name, value in asked.items()
    ]
    together = ADAPTER.request({"model": "m", **asked}).input_tokens
    assert min(alone) > 0
    assert max(alone) < together <= sum(alone)


def test_the_context_of_an_earlier_answer_is_counted_by_its_length():
    without = ADAPTER.request({"model": "m", "prompt": "go on"}).input_tokens
    asked = ADAPTER.request({"model": "m", "prompt": "go on", "context": list(range(700))})
    assert asked.input_tokens == without + 700


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "prompt": "what is this?", "images": [PICTURE]},
        {"model": "m", "messages": [{"role": "user", "content": "this?", "images": [PICTURE]}]},
    ],
)
def test_pictures_are_not_counted_as_text_case_c43(body):
    assert ADAPTER.request(body).input_tokens < 3_000


@pytest.mark.parametrize("body", [{}, {"model": ""}, {"model": 3}])
def test_a_request_without_a_model_is_an_error(body):
    with pytest.raises(ValueError, match="names no model"):
        ADAPTER.request(body)


def test_embedding_has_input_only():
    asked = EMBEDS.request({"model": "nomic-embed-text", "input": ["one", "two"]})
    assert (asked.max_output_tokens, asked.stream) == (0, False)
    answer = {"model": "nomic-embed-text", "embeddings": [[0.1], [0.2]], "prompt_eval_count": 8}
    report = whole(answer, EMBEDS)
    assert (report.usage, report.complete, report.flags) == (Usage(input_tokens=8), True, ())
    assert whole({"embedding": [0.1]}, EMBEDS).flags == ("usage_missing",)


def test_the_last_object_has_the_counts():
    report = whole(FINAL)
    assert report.usage == Usage(input_tokens=26, output_tokens=298)
    assert (report.model, report.flags, report.complete) == ("llama3.2", (), True)
    assert report.raw == {
        "total_duration": 5_191_566_416,
        "prompt_eval_count": 26,
        "eval_count": 298,
    }


def test_a_stream_is_complete_with_its_last_object():
    report = read(PIECE, PIECE, FINAL)
    assert (report.usage, report.complete) == (Usage(input_tokens=26, output_tokens=298), True)
    assert report.delivered
    assert report.delivered_tokens == message_tokens("TheThe", "default")


def test_case_c32_an_object_that_is_not_done_never_settles():
    early = {**PIECE, "prompt_eval_count": 26, "eval_count": 1}
    report = read(early)
    assert (report.usage, report.complete, report.delivered) == (None, False, True)
    assert read(early, FINAL).usage == Usage(input_tokens=26, output_tokens=298)


@pytest.mark.parametrize("missing", [{}, {"prompt_eval_count": 0}, {"prompt_eval_count": None}])
def test_case_c32_a_prompt_left_out_is_flagged_for_the_estimate(missing):
    report = read(PIECE, {"done": True, "eval_count": 42, **missing})
    assert report.usage == Usage(output_tokens=42)
    assert (report.flags, report.input_reported) == (("input_missing",), False)


def test_case_c32_the_cached_part_of_a_prompt_is_not_added_again():
    counts = {"prompt_eval_count": 300, "prompt_eval_cached_count": 256, "eval_count": 42}
    report = whole({"done": True, **counts})
    assert report.usage == Usage(input_tokens=300, output_tokens=42, cache_read_tokens=256)
    assert report.usage.total_tokens == 342
    assert report.raw == counts


@pytest.mark.parametrize("count", [-1, "many", 2**60, [3]])
def test_figures_that_cannot_be_right_are_dropped_case_c19(count):
    report = whole({"done": True, "prompt_eval_count": count, "eval_count": 5})
    assert report.usage == Usage(output_tokens=5)
    assert report.flags == ("anomaly", "input_missing")


def test_an_answer_without_counts_says_so():
    assert read(PIECE, {"done": True}).flags == ("usage_missing",)
    assert whole({"done": True, "prompt_eval_count": 0, "eval_count": 0}).flags == (
        "usage_missing",
    )


def test_thoughts_answers_and_tool_calls_are_delivered():
    call = {"function": {"name": "lookup", "arguments": {"city": "Lisbon"}}}
    parts: list[dict[str, Any]] = [
        {"response": "It scatters", "done": False},
        {"thinking": "Rayleigh", "done": False},
        {"message": {"thinking": "hm"}, "done": False},
        {"message": {"tool_calls": [call]}, "done": False},
    ]
    assert all(read(part).delivered_tokens > 0 for part in parts)
    assert read(*parts).delivered_tokens > max(read(part).delivered_tokens for part in parts)


def test_an_error_in_the_stream_is_no_answer_case_c34():
    report = read(PIECE, {"error": "model runner has unexpectedly stopped"})
    assert (report.failed, report.complete, report.delivered) == (True, False, True)


def test_what_cannot_be_read_is_flagged_and_never_raises_case_c36():
    report = read(b"", b"  ", b"{half", b"[]", b"\xff", FINAL)
    assert report.usage == Usage(input_tokens=26, output_tokens=298)
    assert report.flags == ("unparsed",)
    assert whole(b"<html>").flags == ("unparsed", "usage_missing")


def test_a_stream_sent_as_plain_json_is_read_line_by_line():
    body = b"\n".join(json.dumps(part).encode() for part in (PIECE, FINAL))
    report = whole(body)
    assert (report.usage, report.flags) == (Usage(input_tokens=26, output_tokens=298), ())


def test_prompt_text_is_not_kept():
    report = read({**PIECE, "context": [1, 2]}, {**FINAL, "context": [3, 4], "response": "secret"})
    assert "secret" not in repr(report)
    assert "context" not in report.raw
