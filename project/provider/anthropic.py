"""Answers in the shape of Anthropic messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from project.provider.answer import Answer, Counts, cut
from project.provider.event import Event, Kind, sse
from project.provider.request import ModelRequest
from project.provider.script import Reply

REQUEST_ID = "request-id"
STREAM_TYPE = "text/event-stream"
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
MODELS = ("claude-sonnet-4-5", "claude-haiku-4-5", "claude-opus-4-1")


def usage(reply: Reply, counts: Counts) -> dict[str, Any] | None:
    """Anthropic's input_tokens leaves out what was read from or written to a cache (case C01)."""
    if reply.usage != "counted":
        return None if reply.usage is None else dict(reply.usage)
    written_1h = counts.written_tokens if counts.one_hour else 0
    return {
        "input_tokens": counts.input_tokens - counts.cached_tokens - counts.written_tokens,
        "cache_creation_input_tokens": counts.written_tokens,
        "cache_read_input_tokens": counts.cached_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": counts.written_tokens - written_1h,
            "ephemeral_1h_input_tokens": written_1h,
        },
        "output_tokens": counts.output_tokens,
        "service_tier": "standard",
    }


def document(request: ModelRequest, reply: Reply, answer: Answer, run: str) -> dict[str, Any]:
    """A plain answer."""
    content: list[dict[str, Any]] = []
    if answer.text or not answer.tool_calls:
        content.append({"type": "text", "text": answer.text})
    for call in answer.tool_calls:
        block = {"type": "tool_use", "id": call.id, "name": call.name}
        content.append({**block, "input": json.loads(call.arguments)})
    stop = STOP_REASONS[answer.finish]
    return _message(request, run, content, stop, usage(reply, answer.counts))


def events(request: ModelRequest, reply: Reply, answer: Answer, run: str) -> Iterator[Event]:
    """A streamed answer: input tokens come first, cumulative output tokens in `message_delta`."""
    counted = usage(reply, answer.counts)
    silent = reply.no_usage_even_if_asked
    start = _start_usage(reply, counted)
    yield _event(Kind.OPENING, "message_start", message=_message(request, run, [], None, start))
    first_call = 0
    if answer.text or not answer.tool_calls:
        yield _start(0, {"type": "text", "text": ""})
        yield _event(Kind.OPENING, "ping")
        for text in answer.chunks(reply.chunks):
            yield _delta(0, {"type": "text_delta", "text": text})
        yield _event(Kind.CLOSING, "content_block_stop", index=0)
        first_call = 1
    for index, call in enumerate(answer.tool_calls, start=first_call):
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        yield _start(index, block)
        for part in ("", *cut(call.arguments, 2)):
            yield _delta(index, {"type": "input_json_delta", "partial_json": part})
        yield _event(Kind.CLOSING, "content_block_stop", index=index)
    stop = {"stop_reason": STOP_REASONS[answer.finish], "stop_sequence": None}
    final = {} if counted is None or silent else {"usage": _delta_usage(counted)}
    yield _event(Kind.CLOSING, "message_delta", delta=stop, **final)
    yield _event(Kind.CLOSING, "message_stop")


def error(status: int, message: str, run: str) -> dict[str, Any]:
    kind = ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": f"req_{run}",
    }


def error_event(message: str, run: str) -> bytes:
    return sse(error(529, message, run), "error")


def model(name: str) -> dict[str, Any]:
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": "2025-01-01T00:00:00Z",
        "lifecycle": "active",
    }


def models() -> dict[str, Any]:
    first, *_, last = MODELS
    data = [model(name) for name in MODELS]
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}


def _message(
    request: ModelRequest,
    run: str,
    content: list[dict[str, Any]],
    stop: str | None,
    counted: dict[str, Any] | None,
) -> dict[str, Any]:
    return {
        "id": f"msg_{run}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        **({} if counted is None else {"usage": counted}),
    }


def _start_usage(reply: Reply, counted: dict[str, Any] | None) -> dict[str, Any] | None:
    if reply.start_usage is not None:
        return dict(reply.start_usage)
    if counted is None or "output_tokens" not in counted:
        return counted
    return {**counted, "output_tokens": 1}


def _delta_usage(counted: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in counted.items() if k not in ("cache_creation", "service_tier")}


def _event(kind: Kind, name: str, **fields: Any) -> Event:
    return Event(kind, sse({"type": name, **fields}, name))


def _start(index: int, block: dict[str, Any]) -> Event:
    kind = Kind.OPENING if index == 0 else Kind.CLOSING
    return _event(kind, "content_block_start", index=index, content_block=block)


def _delta(index: int, change: dict[str, Any]) -> Event:
    return _event(Kind.CONTENT, "content_block_delta", index=index, delta=change)
