"""Answers in the shape of OpenAI's responses: plain, streamed, and in the background."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from project.provider.answer import Answer, Counts
from project.provider.event import Event, Kind, sse
from project.provider.openai import REQUEST_ID, STREAM_TYPE, error
from project.provider.request import ModelRequest
from project.provider.script import Reply

__all__ = ["REQUEST_ID", "STREAM_TYPE", "error"]
SEARCH = "web_search"  # a scripted call of this name is a search that was made


def usage(reply: Reply, counts: Counts) -> dict[str, Any] | None:
    if reply.usage != "counted":
        return None if reply.usage is None else dict(reply.usage)
    return {
        "input_tokens": counts.input_tokens,
        "input_tokens_details": {"cached_tokens": counts.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": counts.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts.input_tokens + counts.output_tokens,
    }


def document(request: ModelRequest, reply: Reply, answer: Answer, run: str) -> dict[str, Any]:
    """A plain answer; one in the background is waiting and has neither output nor usage."""
    if request.body.get("background") is True:
        return waiting(request, run)
    return finished(request, reply, answer, run)


def waiting(request: ModelRequest, run: str) -> dict[str, Any]:
    return {**_envelope(request, run), "status": "queued", "output": [], "usage": None}


def finished(request: ModelRequest, reply: Reply, answer: Answer, run: str) -> dict[str, Any]:
    cut = answer.finish == "length"
    return {
        **_envelope(request, run),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": list(_output(answer, run)),
        "usage": usage(reply, answer.counts),
    }


def events(request: ModelRequest, reply: Reply, answer: Answer, run: str) -> Iterator[Event]:
    """A streamed answer. Usage comes with the whole response, in the last event."""
    number = iter(range(100_000))

    def event(kind: str, **fields: Any) -> bytes:
        return sse({"type": kind, "sequence_number": next(number), **fields}, kind)

    begun = {**_envelope(request, run), "status": "in_progress", "output": [], "usage": None}
    yield Event(Kind.OPENING, event("response.created", response=begun))
    place = {"item_id": f"msg_{run}", "output_index": 0, "content_index": 0, "logprobs": []}
    for text in answer.chunks(reply.chunks):
        yield Event(Kind.CONTENT, event("response.output_text.delta", delta=text, **place))
    whole = finished(request, reply, answer, run)
    for index, item in enumerate(whole["output"]):
        done = event("response.output_item.done", output_index=index, item=item)
        yield Event(Kind.CLOSING, done)
    if reply.no_usage_even_if_asked:
        whole["usage"] = None
    yield Event(Kind.CLOSING, event(f"response.{whole['status']}", response=whole))


def error_event(message: str, run: str) -> bytes:
    failed = {"type": "error", "code": "server_error", "message": message, "param": None}
    return sse({**failed, "sequence_number": 0}, "error")


def _envelope(request: ModelRequest, run: str) -> dict[str, Any]:
    return {
        "id": f"resp_{run}",
        "object": "response",
        "created_at": int(time.time()),
        "background": request.body.get("background") is True,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": request.model,
        "parallel_tool_calls": True,
        "service_tier": "default",
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": request.body.get("tools", []),
        "top_p": 1.0,
    }


def _output(answer: Answer, run: str) -> Iterator[dict[str, Any]]:
    for call in answer.tool_calls:
        if call.name == SEARCH:
            action = {"type": "search", "query": "simulated"}
            yield {"id": call.id, "type": "web_search_call", "status": "completed",
                   "action": action}  # fmt: skip
        else:
            yield {"id": call.id, "type": "function_call", "call_id": call.id, "name": call.name,
                   "arguments": call.arguments, "status": "completed"}  # fmt: skip
    if answer.text:
        content = {"type": "output_text", "text": answer.text, "annotations": []}
        yield {"id": f"msg_{run}", "type": "message", "role": "assistant", "status": "completed",
               "content": [content]}  # fmt: skip
