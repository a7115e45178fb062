"""Answers in the shape of Google's generateContent, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from project.provider.answer import Answer, Counts
from project.provider.event import Event, Kind, sse
from project.provider.request import ModelRequest
from project.provider.script import Reply

REQUEST_ID = "x-request-id"
STREAM_TYPE = "text/event-stream"
STATUSES = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


def usage(reply: Reply, counts: Counts) -> dict[str, Any] | None:
    if reply.usage != "counted":
        return None if reply.usage is None else dict(reply.usage)
    cached = {"cachedContentTokenCount": counts.cached_tokens} if counts.cached_tokens else {}
    return {
        "promptTokenCount": counts.input_tokens,
        **cached,
        "candidatesTokenCount": counts.output_tokens,
        "totalTokenCount": counts.input_tokens + counts.output_tokens,
    }


def document(request: ModelRequest, reply: Reply, answer: Answer, run: str) -> dict[str, Any]:
    """A plain answer."""
    calls = [
        {"functionCall": {"name": call.name, "args": json.loads(call.arguments)}}
        for call in answer.tool_calls
    ]
    texts: list[dict[str, Any]] = [{"text": answer.text}] if answer.text else []
    return _chunk(request, run, [*texts, *calls], answer, usage(reply, answer.counts))


def events(request: ModelRequest, reply: Reply, answer: Answer, run: str) -> Iterator[Event]:
    """A streamed answer: every chunk tells the input, the last one all of the usage."""
    counted = usage(reply, answer.counts)
    early = None
    if counted is not None and "promptTokenCount" in counted:
        prompt = counted["promptTokenCount"]
        early = {"promptTokenCount": prompt, "totalTokenCount": prompt}
    for text in answer.chunks(reply.chunks):
        yield Event(Kind.CONTENT, sse(_chunk(request, run, [{"text": text}], None, early)))
    for call in answer.tool_calls:
        part = {"functionCall": {"name": call.name, "args": json.loads(call.arguments)}}
        yield Event(Kind.CONTENT, sse(_chunk(request, run, [part], None, early)))
    final = None if reply.no_usage_even_if_asked else counted
    yield Event(Kind.CLOSING, sse(_chunk(request, run, [{"text": ""}], answer, final)))


def error(status: int, message: str, run: str) -> dict[str, Any]:
    return {
        "error": {"code": status, "message": message, "status": STATUSES.get(status, "INTERNAL")}
    }


def error_event(message: str, run: str) -> bytes:
    return sse(error(500, message, run))


def _chunk(
    request: ModelRequest,
    run: str,
    parts: list[dict[str, Any]],
    ended: Answer | None,
    counted: dict[str, Any] | None,
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if ended is not None:
        candidate["finishReason"] = "MAX_TOKENS" if ended.finish == "length" else "STOP"
    return {
        "candidates": [candidate],
        **({} if counted is None else {"usageMetadata": counted}),
        "modelVersion": request.model,
        "responseId": run,
    }
