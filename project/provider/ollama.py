"""Answers in the shape of Ollama's own API: chat and generate, streams as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from project.provider.answer import Answer, Counts
from project.provider.event import Event, Kind, compact
from project.provider.request import ModelRequest
from project.provider.script import Reply

STREAM_TYPE = "application/x-ndjson"
REQUEST_ID = "x-request-id"
CREATED = "2025-01-01T00:00:00.000000Z"


def usage(reply: Reply, counts: Counts) -> dict[str, Any] | None:
    """What the last object tells. A prompt that was in the cache is counted all the same."""
    if reply.usage != "counted":
        return None if reply.usage is None else dict(reply.usage)
    return {
        "prompt_eval_count": counts.input_tokens,
        "prompt_eval_duration": counts.input_tokens * 100_000,
        "eval_count": counts.output_tokens,
        "eval_duration": counts.output_tokens * 5_000_000,
    }


def document(request: ModelRequest, reply: Reply, answer: Answer, run: str) -> dict[str, Any]:
    """A plain answer."""
    calls = [
        {"function": {"name": call.name, "arguments": json.loads(call.arguments)}}
        for call in answer.tool_calls
    ]
    return {**_part(request, answer.text, calls), **_end(reply, answer)}


def events(request: ModelRequest, reply: Reply, answer: Answer, run: str) -> Iterator[Event]:
    """A streamed answer; its last object has the counts and no text."""
    for text in answer.chunks(reply.chunks):
        yield Event(Kind.CONTENT, line({**_part(request, text), "done": False}))
    for call in answer.tool_calls:
        made = {"function": {"name": call.name, "arguments": json.loads(call.arguments)}}
        yield Event(Kind.CONTENT, line({**_part(request, "", [made]), "done": False}))
    yield Event(Kind.CLOSING, line({**_part(request, ""), **_end(reply, answer)}))


def line(document: dict[str, Any]) -> bytes:
    return compact(document) + b"\n"


def error(status: int, message: str, run: str) -> dict[str, Any]:
    return {"error": message}


def error_event(message: str, run: str) -> bytes:
    return line(error(500, message, run))


def _part(
    request: ModelRequest, text: str, calls: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    envelope: dict[str, Any] = {"model": request.model, "created_at": CREATED}
    if request.path.endswith("/generate"):
        return {**envelope, "response": text}
    called = {"tool_calls": calls} if calls else {}
    return {**envelope, "message": {"role": "assistant", "content": text, **called}}


def _end(reply: Reply, answer: Answer) -> dict[str, Any]:
    counted = None if reply.no_usage_even_if_asked else usage(reply, answer.counts)
    reason = "length" if answer.finish == "length" else "stop"
    return {"done_reason": reason, "done": True, **(counted or {})}
