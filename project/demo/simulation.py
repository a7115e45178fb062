"""The simulated provider of this process, and what it answers in the demo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from project.provider import ModelRequest, Provider, Reply

FLAT_MODEL = "demo-flat"  # uses all that it may
FLAT_SMALL_MODEL = "demo-flat-small"  # the same for a tenth of its price
CHAT_OUTPUT_TOKENS = 9_000
CHAT_TEXT = (
    "This answer comes from the simulated model: a real HTTP request, a real SDK, no real money. "
    "It is counted as 9,000 output tokens, which at 10 dollars per million is 9 cents of your "
    "50 cents a day. Before it was sent, 10 cents were reserved; now that the provider has said "
    "what it used, 9 are charged and the rest is yours again."
)
CHEAPER_TEXT = (
    "This answer comes from a cheaper model, as 90 % of your 50 cents are used. It is counted as "
    "9,000 output tokens too, and each of them costs less."
)
CHEAPER_MODELS = ("gpt-5-mini", "claude-haiku-4-5")
CHAT_CHUNKS = 24
CHUNK_SECONDS = 0.03
RACE_WORD = "race"
RACE_SECONDS = 0.4  # long enough for both calls of a race to be in flight at once

_running: list[Provider] = []


@contextmanager
def running() -> Iterator[Provider]:
    """Serve a provider on loopback, and make it the one that the page offers."""
    with Provider() as provider:
        provider.script(reply)
        _running.append(provider)
        try:
            yield provider
        finally:
            _running.remove(provider)


def url() -> str:
    """Where the provider is, without a path; empty if there is none."""
    return _running[-1].anthropic_url if _running else ""


def reply(request: ModelRequest) -> Reply | None:
    """What the provider says to a request of the demo. Agents get the provider's own walk."""
    if request.model in (FLAT_MODEL, FLAT_SMALL_MODEL):
        racing = request.messages[-1].get("content") == RACE_WORD
        return Reply(
            text=None if request.tools else "Done.",
            input_tokens=100,
            output_tokens=request.max_output_tokens,
            delay_seconds=RACE_SECONDS if racing else 0.0,
        )
    if request.tools:
        return None
    return Reply(
        text=CHEAPER_TEXT if request.model in CHEAPER_MODELS else CHAT_TEXT,
        output_tokens=CHAT_OUTPUT_TOKENS,
        chunks=CHAT_CHUNKS if request.stream else None,
        chunk_delay_seconds=CHUNK_SECONDS if request.stream else 0.0,
    )
