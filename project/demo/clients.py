"""The official SDKs, metered: the only line of the demo that a real project would copy."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from project.demo.offers import Offer
from token_allowance import allowance
from token_allowance.outgoing import MODEL_HEADER

TIMEOUT_SECONDS = 120.0


@contextmanager
def opened(offer: Offer) -> Iterator[Any]:
    """An OpenAI or Anthropic client whose every model call is reserved and settled."""
    # Imported late: together they take longer to import than the rest of the demo to start.
    sdk: Any
    if offer.api == "anthropic":
        import anthropic as sdk

        kind = sdk.Anthropic
    else:
        import openai as sdk

        kind = sdk.OpenAI
    # What is on loopback must not be asked of a proxy that the environment names.
    http = sdk.DefaultHttpxClient(trust_env=offer.real, timeout=TIMEOUT_SECONDS)
    with kind(
        api_key=offer.api_key, base_url=offer.base_url, max_retries=1, http_client=http
    ) as client:
        yield allowance.meter(client, provider=offer.provider)


def served(offer: Offer, headers: Mapping[str, str]) -> str:
    """The model that answered: a cheaper one where a budget has reached its degrade level."""
    return headers.get(MODEL_HEADER, offer.model)


def errors() -> tuple[type[Exception], ...]:
    """What the SDKs in use raise when a provider fails. A refusal is none of these."""
    known = (("anthropic", "AnthropicError"), ("openai", "OpenAIError"))
    return tuple(getattr(sys.modules[sdk], name) for sdk, name in known if sdk in sys.modules)


def told(error: Exception) -> str:
    """A failure in words that quote neither the key nor the request."""
    status = getattr(error, "status_code", None)
    with_status = f" (HTTP {status})" if status else ""
    return f"The provider could not answer: {type(error).__name__}{with_status}."
