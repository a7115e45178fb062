"""What the simulated provider answers, reply by reply."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from project.provider.request import ModelRequest

HANG_SECONDS_MAX = 30.0
DELAY_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One scripted answer. A field left alone means: as a well-behaved provider would.

    Text and tools
        `text`, `tool_calls` (each `{"name": ..., "arguments": {...}}`, `"id"` optional), `chunks`
        (into how many content chunks a stream is cut).
    Usage
        `usage`: a mapping is sent verbatim, None leaves usage out, "counted" counts tokens.
        `start_usage`: verbatim usage of Anthropic's `message_start`.
        `input_tokens`, `output_tokens`, `cached_tokens`: exact counts in either provider's shape.
        `usage_in_choice_chunk` (OpenAI): usage rides on the finish chunk, asked for or not.
        `no_usage_even_if_asked`: a stream ends without usage, a plain answer has it.
    HTTP
        `status` (400 and above: the provider's error document), `headers`, `body` (verbatim,
        instead of anything made here), `content_encoding` ("gzip").
    Trouble
        `delay_seconds` before the headers, `chunk_delay_seconds` before each content chunk,
        `drop_after_chunks` (socket closed; 0 = before any content; a plain answer loses half its
        body), `error_event_after_chunks`, `hang` (read, never answered, at most 30 seconds),
        `reset_connection` (TCP reset instead of an answer).
    """

    text: str | None = None
    tool_calls: Sequence[Mapping[str, Any]] | None = None
    chunks: int | None = None
    usage: Mapping[str, Any] | Literal["counted"] | None = "counted"
    start_usage: Mapping[str, Any] | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    usage_in_choice_chunk: bool = False
    no_usage_even_if_asked: bool = False
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    content_encoding: Literal["gzip"] | None = None
    delay_seconds: float = 0.0
    chunk_delay_seconds: float = 0.0
    drop_after_chunks: int | None = None
    error_event_after_chunks: int | None = None
    hang: bool = False
    reset_connection: bool = False

    def __post_init__(self) -> None:
        for name in ("delay_seconds", "chunk_delay_seconds"):
            if not 0 <= getattr(self, name) <= DELAY_SECONDS_MAX:
                raise ValueError(f"{name} must be between 0 and {DELAY_SECONDS_MAX:.0f}")
        if self.chunks is not None and self.chunks < 1:
            raise ValueError("chunks must be at least 1")
        if self.content_encoding not in (None, "gzip"):
            raise ValueError("content_encoding must be None or 'gzip'")

    def to_json(self) -> dict[str, Any]:
        """The fields that differ from the defaults."""
        plain = Reply()
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if getattr(self, f.name) != getattr(plain, f.name)
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Reply:
        """Raises TypeError for an unknown field, ValueError for an impossible one."""
        return cls(**document)


PLAIN = Reply()
FIXED_COST = Reply(input_tokens=100, output_tokens=100)
"""Every call costs 100 input and 100 output tokens, nothing cached: for counting races."""

Chooser = Callable[[ModelRequest], Reply | None]


class Script:
    """Replies in order of arrival, then the default; or a function that chooses each one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._replies: deque[Reply] = deque()
        self._default = PLAIN
        self._chooser: Chooser | None = None

    @property
    def chooser(self) -> Chooser | None:
        return self._chooser

    def set(self, replies: Iterable[Reply] | Chooser = (), default: Reply | None = None) -> None:
        with self._lock:
            self._chooser = replies if callable(replies) else None
            self._replies = deque() if callable(replies) else deque(replies)
            self._default = PLAIN if default is None else default

    def take(self) -> Reply:
        with self._lock:
            return self._replies.popleft() if self._replies else self._default

    @property
    def default(self) -> Reply:
        return self._default
