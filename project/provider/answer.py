"""What the simulated model says, and what it costs in tokens."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from project.provider import walk
from project.provider.prompt import Prompt, tokens
from project.provider.request import ModelRequest
from project.provider.script import Reply

FRIENDLY = (
    "Hello! This is a simulated answer: no real model was called and no money was spent. "
    "The numbers beside it are counted the way a real provider would count them, so every budget, "
    "reservation and refusal that you see behaves as it would in production."
)
TOOL_CALL_TOKENS = 12
PIECES_PER_CHUNK = 4
PIECE = re.compile(r"\s*\S{1,6}|\s+")

Finish = Literal["stop", "length", "tool_calls"]


class ToolCall(NamedTuple):
    id: str
    name: str
    arguments: str


class Counts(NamedTuple):
    """Tokens of the whole call: input includes cached and written, output all choices."""

    input_tokens: int
    cached_tokens: int
    written_tokens: int
    one_hour: bool
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """`pieces` joined are the text; each counts as one token unless the script says otherwise."""

    pieces: list[str]
    tool_calls: tuple[ToolCall, ...]
    finish: Finish
    counts: Counts

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def chunks(self, number: int | None) -> list[str]:
        """The text cut for a stream, into exactly `number` chunks (some empty) if given."""
        if number is None:
            number = -(-len(self.pieces) // PIECES_PER_CHUNK)
        return cut(self.text, number) if number > len(self.pieces) else _group(self.pieces, number)


def compose(request: ModelRequest, reply: Reply, prompt: Prompt, run: str) -> Answer:
    """`run` makes the ids of tool calls unique to this answer."""
    calls = tuple(
        ToolCall(
            call.get("id") or f"call_{run}_{position}",
            call["name"],
            json.dumps(call.get("arguments", {}), ensure_ascii=False),
        )
        for position, call in enumerate(_tool_calls(request, reply))
    )
    text = reply.text if reply.text is not None else "" if calls else FRIENDLY
    pieces = PIECE.findall(text)
    maximum = request.max_output_tokens
    finish: Finish = "tool_calls" if calls else "stop"
    if maximum is not None and len(pieces) > maximum:
        pieces, calls, finish = pieces[:maximum], (), "length"
    output = len(pieces) + sum(TOOL_CALL_TOKENS + tokens(call.arguments) for call in calls)
    output = (output if maximum is None else min(output, maximum)) * request.choices
    return Answer(pieces, calls, finish, _counts(reply, prompt, output))


def cut(text: str, number: int) -> list[str]:
    """`text` in `number` parts of nearly equal length."""
    return [text[start:end] for start, end in spans(len(text), number)]


def spans(length: int, number: int) -> list[tuple[int, int]]:
    """Start and end of `number` parts of nearly equal length."""
    edges = [length * position // max(number, 1) for position in range(number + 1)]
    return list(pairwise(edges))


def _group(pieces: list[str], number: int) -> list[str]:
    return ["".join(pieces[start:end]) for start, end in spans(len(pieces), number)]


def _tool_calls(request: ModelRequest, reply: Reply) -> list[dict[str, Any]]:
    if reply.tool_calls is not None:
        return [dict(call) for call in reply.tool_calls]
    if reply.text is None and walk.TOOL in request.tools:
        return [{"name": walk.TOOL, "arguments": {"name": walk.next_name(request)}}]
    return []


def _counts(reply: Reply, prompt: Prompt, output: int) -> Counts:
    cached, written = prompt.cached_tokens, prompt.written_tokens
    if reply.input_tokens is not None or reply.cached_tokens is not None:
        cached, written = reply.cached_tokens or 0, 0
    return Counts(
        input_tokens=prompt.input_tokens if reply.input_tokens is None else reply.input_tokens,
        cached_tokens=cached,
        written_tokens=written,
        one_hour=prompt.one_hour,
        output_tokens=output if reply.output_tokens is None else reply.output_tokens,
    )
