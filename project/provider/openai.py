"""Answers in the shape of OpenAI chat completions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from project.provider.answer import Answer, Counts, cut
from project.provider.event import Event, Kind, sse
from project.provider.request import ModelRequest
from project.provider.script import Reply

DONE = b"data: [DONE]\n\n"
REQUEST_ID = "x-request-id"
STREAM_TYPE = "text/event-stream"
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    429: "rate_limit_error",
}
MODELS = ("gpt-5", "gpt-5-mini", "gpt-4o-mini")


def usage(reply: Reply, counts: Counts) -> dict[str, Any] | None:
    if reply.usage != "counted":
        return None if reply.usage is None else dict(reply.usage)
    return {
        "prompt_tokens": counts.input_tokens,
        "completion_tokens": counts.output_tokens,
        "total_tokens": counts.input_tokens + counts.output_tokens,
        "prompt_tokens_details": {"cached_tokens": counts.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def document(request: ModelRequest, reply: Reply, answer: Answer, run: str) -> dict[str, Any]:
    """A plain answer."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.text if answer.text or not answer.tool_calls else None,
        "refusal": None,
        "annotations": [],
    }
    if answer.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.tool_calls
        ]
    choices = [
        {"index": index, "message": message, "logprobs": None, "finish_reason": answer.finish}
        for index in range(request.choices)
    ]
    counted = usage(reply, answer.counts)
    return {
        **_envelope(request, run, "chat.completion"),
        "choices": choices,
        **({} if counted is None else {"usage": counted}),
    }


def events(request: ModelRequest, reply: Reply, answer: Answer, run: str) -> Iterator[Event]:
    """A streamed answer. Usage comes last, in a chunk without choices, and only if asked for."""
    counted = usage(reply, answer.counts)
    asked = request.include_usage and not reply.no_usage_even_if_asked and counted is not None
    early = counted if reply.usage_in_choice_chunk else None
    envelope = _envelope(request, run, "chat.completion.chunk")

    def chunk(choices: list[dict[str, Any]], used: dict[str, Any] | None = None) -> bytes:
        nulls = {"usage": used} if used is not None or asked else {}
        return sse({**envelope, "choices": choices, **nulls})

    def delta(change: dict[str, Any], finish: str | None = None) -> list[dict[str, Any]]:
        part = {"delta": change, "logprobs": None, "finish_reason": finish}
        return [{"index": index, **part} for index in range(request.choices)]

    for choice in delta({"role": "assistant", "content": "", "refusal": None}):
        yield Event(Kind.OPENING, chunk([choice]))
    for text in answer.chunks(reply.chunks):
        for choice in delta({"content": text}):
            yield Event(Kind.CONTENT, chunk([choice]))
    for change in _tool_deltas(answer):
        for choice in delta({"tool_calls": [change]}):
            yield Event(Kind.CONTENT, chunk([choice]))
    for choice in delta({}, answer.finish):
        yield Event(Kind.CLOSING, chunk([choice], early))
    if asked and early is None:
        yield Event(Kind.CLOSING, chunk([], counted))
    yield Event(Kind.CLOSING, DONE)


def error(status: int, message: str, run: str) -> dict[str, Any]:
    kind = ERROR_TYPES.get(status, "server_error")
    code = "rate_limit_exceeded" if status == 429 else None
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def error_event(message: str, run: str) -> bytes:
    return sse(error(500, message, run))


def model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 1735689600, "owned_by": "simulated"}


def models() -> dict[str, Any]:
    return {"object": "list", "data": [model(name) for name in MODELS]}


def _envelope(request: ModelRequest, run: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{run}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
        "service_tier": "default",
        "system_fingerprint": "fp_simulated",
    }


def _tool_deltas(answer: Answer) -> Iterator[dict[str, Any]]:
    for index, call in enumerate(answer.tool_calls):
        yield {
            "index": index,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": ""},
        }
        for part in cut(call.arguments, 2):
            yield {"index": index, "function": {"arguments": part}}
