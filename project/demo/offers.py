"""The models one can choose on the page: simulated ones, and real ones if a key is at hand."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from project.demo import simulation

Api = Literal["openai", "anthropic"]
FLAT_OUTPUT_TOKENS = 8_000  # 8 cents at 10 dollars per million, and its input is free
CLIMB_OUTPUT_TOKENS = 9_000  # 9 cents, and nine tenths of one on the cheaper model
CHAT_MAX_TOKENS = 10_000
REAL_MAX_TOKENS = 1_000
OLLAMA_PORT = 11434
OLLAMA_MODEL = "llama3.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A model and where it is. ``provider`` names whose prices apply where the host does not."""

    key: str
    label: str
    api: Api
    model: str
    base_url: str | None
    api_key: str = field(default="simulated", repr=False)
    provider: str = ""
    max_output_tokens: int = CHAT_MAX_TOKENS
    max_name: str = "max_completion_tokens"
    real: bool = False


def offers(environ: Mapping[str, str] = os.environ) -> list[Offer]:
    """The first is the default. Empty if neither the simulated provider nor a real one is there."""
    return [*_simulated(), *_real(environ)]


def agent_offers() -> list[Offer]:
    """Those that speak the API in which the demo's agent is written."""
    return [offer for offer in offers() if offer.api == "openai"]


def simulated() -> bool:
    return bool(simulation.url())


def flat() -> Offer:
    """A simulated model of which each call costs exactly 8 cents, as estimated."""
    return Offer(
        key="flat",
        label="Simulated",
        api="openai",
        model=simulation.FLAT_MODEL,
        base_url=f"{simulation.url()}/v1",
        max_output_tokens=FLAT_OUTPUT_TOKENS,
    )


def climbing() -> Offer:
    """The same, of 9 cents a call: five of them are 90 % of a user's 50 cents."""
    return replace(flat(), key="climbing", max_output_tokens=CLIMB_OUTPUT_TOKENS)


def _simulated() -> list[Offer]:
    url = simulation.url()
    if not url:
        return []
    return [
        Offer(
            key="openai",
            label="Simulated gpt-5 (OpenAI SDK)",
            api="openai",
            model="gpt-5",
            base_url=f"{url}/v1",
        ),
        Offer(
            key="anthropic",
            label="Simulated claude-sonnet-5 (Anthropic SDK)",
            api="anthropic",
            model="claude-sonnet-5",
            base_url=url,
        ),
    ]


def _real(environ: Mapping[str, str]) -> list[Offer]:
    found = []
    if key := environ.get("OPENAI_API_KEY"):
        model = environ.get("OPENAI_MODEL", "gpt-5-mini")
        found.append(
            Offer(
                key="real-openai",
                label=f"REAL, costs money: {model} at OpenAI",
                api="openai",
                model=model,
                base_url=environ.get("OPENAI_BASE_URL"),
                api_key=key,
                max_output_tokens=REAL_MAX_TOKENS,
                real=True,
            )
        )
    if key := environ.get("ANTHROPIC_API_KEY"):
        model = environ.get("ANTHROPIC_MODEL", "claude-haiku-4-5")
        found.append(
            Offer(
                key="real-anthropic",
                label=f"REAL, costs money: {model} at Anthropic",
                api="anthropic",
                model=model,
                base_url=environ.get("ANTHROPIC_BASE_URL"),
                api_key=key,
                max_output_tokens=REAL_MAX_TOKENS,
                real=True,
            )
        )
    if host := environ.get("OLLAMA_HOST"):
        model = environ.get("OLLAMA_MODEL", OLLAMA_MODEL)
        found.append(
            Offer(
                key="real-ollama",
                label=f"REAL, on Ollama: {model}, priced as if it cost money",
                api="openai",
                model=model,
                base_url=ollama_url(host),
                api_key="ollama",
                provider="ollama",
                max_output_tokens=REAL_MAX_TOKENS,
                max_name="max_tokens",
                real=True,
            )
        )
    return found


def ollama_url(host: str) -> str:
    """The OpenAI-compatible base URL of an OLLAMA_HOST such as ``127.0.0.1`` or ``http://a:1``.

    A server that listens on all addresses is called on loopback.
    """
    scheme, found, rest = host.rpartition("://")
    scheme, rest = (scheme, rest.rstrip("/")) if found else ("http", host.rstrip("/"))
    name, colon, port = rest.partition(":")
    if name in ("", "0.0.0.0"):
        name = "127.0.0.1"
    if not colon:
        port = "443" if scheme == "https" else str(OLLAMA_PORT)
    return f"{scheme}://{name}:{port}/v1"
