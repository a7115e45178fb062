"""One question to a model, answered at once or piece by piece."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from project.demo import clients
from project.demo.offers import Offer


def whole(offer: Offer, question: str) -> tuple[str, str]:
    """Which model answered, and what. Raises an AllowanceError if a budget has no room, and nothing
    was sent."""
    with clients.opened(offer) as client:
        if offer.api == "anthropic":
            raw = client.messages.with_raw_response.create(**_asked(offer, question))
            parts = raw.parse().content
            answer = "".join(part.text for part in parts if part.type == "text")
        else:
            raw = client.chat.completions.with_raw_response.create(**_asked(offer, question))
            answer = raw.parse().choices[0].message.content or ""
        return clients.served(offer, raw.headers), answer


def pieces(offer: Offer, question: str) -> Generator[str]:
    """The answer as it comes. The first piece is no part of it, but which model answers: with it
    the call is admitted."""
    with clients.opened(offer) as client:
        if offer.api == "anthropic":
            with client.messages.stream(**_asked(offer, question)) as stream:
                yield clients.served(offer, stream.response.headers)
                yield from stream.text_stream
            return
        with client.chat.completions.create(**_asked(offer, question), stream=True) as chunks:
            yield clients.served(offer, chunks.response.headers)
            for chunk in chunks:
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content


def _asked(offer: Offer, question: str) -> dict[str, Any]:
    maximum = "max_tokens" if offer.api == "anthropic" else offer.max_name
    return {
        "model": offer.model,
        "messages": [{"role": "user", "content": question}],
        maximum: offer.max_output_tokens,
    }
