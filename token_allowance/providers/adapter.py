"""What metering asks of a provider's API, in words that hold for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

from token_allowance.estimate import ORDINARY, Counting
from token_allowance.providers.rewriting import Change
from token_allowance.usage import Usage


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What the body of one model call asks for.

    ``input_tokens`` is our estimate. ``max_output_tokens`` is the request's own maximum for each
    of its ``choices``, None if it names none (case C42). ``expected`` is what it will use beside
    plain tokens: searches at most, pictures, sound; its kinds of tokens may exceed the output and
    are then all of it.
    """

    model: str
    input_tokens: int
    max_output_tokens: int | None = None
    choices: int = 1
    stream: bool = False
    service_tier: str = ""
    usage_requested: bool = False  # the stream will carry usage without our help
    expected: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Report:
    """What one response said, so far or in the end.

    ``usage`` is None when the response gave no figures, or only zeros. ``raw`` holds the
    provider's own figures: numbers and nested mappings of numbers, never text.

    Flags: ``anomaly`` a figure that cannot be right was dropped or clamped; ``cache_ttl_assumed``
    cache writes of unknown lifetime are taken for the short one; ``input_missing`` the response
    gives an output but no input; ``unparsed`` a part of the response is no JSON object;
    ``usage_missing`` the response is complete and has no usage; ``iterations`` other work than the
    answer itself was done, and is in ``usage`` or in ``others``.
    """

    usage: Usage | None
    model: str = ""
    service_tier: str = ""
    request_id: str = ""
    raw: Mapping[str, object] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    delivered: bool = False  # any content has reached the caller
    delivered_tokens: int = 0  # our estimate of that content
    complete: bool = False  # the response said that it is finished
    input_reported: bool = False  # the input of ``usage`` is the provider's, whatever the output is
    failed: bool = False  # an error event inside the stream
    others: tuple[tuple[str, Usage], ...] = ()  # what other models did for the same answer
    reported_dollars: Decimal | None = None  # what the provider says that it costs (case C17)
    deferred_id: str = ""  # the answer will be fetched later, under this id


def unreadable(body: bytes) -> Report:
    """What a successful answer that nothing here can read says: never that it was free."""
    flags = ("unparsed", "usage_missing")
    return Report(None, flags=flags, delivered=bool(body.strip()), complete=True)


class Reader(Protocol):
    """One streamed response being read. All state lives here, one object a response (case C37)."""

    def event(self, data: bytes, name: str = "") -> None:
        """Read the data of one SSE event. Never raises, whatever the bytes are (case C36)."""

    def report(self) -> Report:
        """What the stream has said up to now."""
        ...


class Unasked:
    """For APIs whose streams carry their usage unasked, or never."""

    __slots__ = ()

    def ask_usage(self, body: dict[str, Any]) -> dict[str, Any] | None:
        return None

    def is_usage_only(self, data: bytes) -> bool:
        return False


class Adapter(Protocol):
    """One API of a provider: how to read its requests and responses."""

    @property
    def api(self) -> str:
        """The name of the API, such as ``chat_completions`` or ``messages``."""
        ...

    @property
    def family(self) -> str:
        """The family of tokenizers whose weights the estimator uses."""
        ...

    def request(self, body: Mapping[str, Any], counting: Counting = ORDINARY) -> ModelRequest:
        """Raises ValueError when the body names no model."""
        ...

    def ask_usage(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """A new body that makes the stream carry its usage; None if there is nothing to change."""
        ...

    def changeable(self, body: Mapping[str, Any], path: str) -> Change:
        """What of this request the ladder may change before it is sent."""
        ...

    def rewrite(
        self, body: Mapping[str, Any], model: str, max_output_tokens: int | None
    ) -> dict[str, Any]:
        """A new body that asks this model for at most so many tokens an answer.

        ``""`` and None: as before. Only what ``changeable`` allows is to be changed.
        """
        ...

    def address(self, path: str, model: str) -> str:
        """The path that asks this model."""
        ...

    def is_usage_only(self, data: bytes) -> bool:
        """Whether an event exists only because ``ask_usage`` asked for it (case C30)."""
        ...

    def response(self, body: bytes) -> Report:
        """Read a whole response that arrived with status 200."""
        ...

    def reader(self) -> Reader:
        """A fresh reader for one streamed response."""
        ...
