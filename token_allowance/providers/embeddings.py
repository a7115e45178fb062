"""OpenAI's embeddings, and those of the servers that imitate them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from token_allowance.estimate import ORDINARY, Counting
from token_allowance.providers.adapter import ModelRequest, Reader, Report, Unasked
from token_allowance.providers.fields import label, mapping, numbers, record
from token_allowance.providers.openai import prompt_tokens, prompts_of
from token_allowance.providers.openai_usage import read_usage, reported_dollars
from token_allowance.providers.rewriting import AsSent


@dataclass(frozen=True, slots=True)
class Embeddings(AsSent, Unasked):
    """``POST …/embeddings``. There is no output to pay for, and no stream."""

    family: str = "openai"
    api: str = "embeddings"

    def request(self, body: Mapping[str, Any], counting: Counting = ORDINARY) -> ModelRequest:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise ValueError("the embeddings request names no model")
        inputs = prompts_of(body.get("input"))
        return ModelRequest(
            model=model,
            input_tokens=sum(prompt_tokens(text, self.family, counting) for text in inputs),
            max_output_tokens=0,
        )

    def response(self, body: bytes) -> Report:
        answer = record(body)
        if answer is None:
            unread = ("unparsed", "usage_missing")
            return Report(None, flags=unread, delivered=bool(body.strip()), complete=True)
        counts = mapping(answer.get("usage"))
        usage, flags = read_usage(counts)
        return Report(
            usage=usage,
            model=label(answer.get("model")),
            request_id=label(answer.get("id")),
            raw=numbers(counts),
            flags=flags if usage else ("usage_missing",),
            delivered=bool(answer.get("data")),
            complete=True,
            input_reported=usage is not None,
            reported_dollars=reported_dollars(counts),
        )

    def reader(self) -> Reader:
        return _NoStream()


class _NoStream:
    def event(self, data: bytes, name: str = "") -> None:
        """Nothing is streamed."""

    def report(self) -> Report:
        return Report(None)
