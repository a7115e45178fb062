"""How a request is to be counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """Chosen by the settings for all requests; ``model`` is that of the request.

    ``media_tokens`` is charged for each picture, sound or file whose size cannot be told.
    ``strict`` counts text by its bytes, which no known vocabulary exceeds.
    """

    media_tokens: int = 1600
    strict: bool = False
    model: str = ""


ORDINARY = Counting()
