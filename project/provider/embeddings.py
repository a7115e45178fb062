"""Answers in the shape of OpenAI's embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from project.provider.answer import Answer, Counts
from project.provider.event import Event
from project.provider.openai import REQUEST_ID, STREAM_TYPE, error, error_event
from project.provider.request import ModelRequest
from project.provider.script import Reply

__all__ = ["REQUEST_ID", "STREAM_TYPE", "error", "error_event"]
VECTOR = [0.0, 0.25, 0.5, 1.0]


def usage(reply: Reply, counts: Counts) -> dict[str, Any] | None:
    if reply.usage != "counted":
        return None if reply.usage is None else dict(reply.usage)
    return {"prompt_tokens": counts.input_tokens, "total_tokens": counts.input_tokens}


def document(request: ModelRequest, reply: Reply, answer: Answer, run: str) -> dict[str, Any]:
    vectors = [
        {"object": "embedding", "index": index, "embedding": VECTOR}
        for index in range(len(request.messages))
    ]
    return {
        "object": "list",
        "data": vectors,
        "model": request.model,
        "usage": usage(reply, answer.counts),
    }


def events(request: ModelRequest, reply: Reply, answer: Answer, run: str) -> Iterator[Event]:
    """An embedding is never streamed."""
    yield from ()
