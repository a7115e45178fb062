"""The longest answer a model can give, so that an absurd maximum takes no more room (case C42).

As the providers publish it, by the beginning of the model's name; the longest beginning wins, and
ESTIMATE["model_max_output_tokens"] goes before this table. A model that is not here is not clamped.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

_MAX_OUTPUT_TOKENS: Final = {
    "gpt-3.5-turbo": 4_096,
    "gpt-4": 8_192,
    "gpt-4o": 16_384,
    "gpt-4.1": 32_768,
    "gpt-5": 128_000,
    "gpt-5-pro": 272_000,
    "gpt-6": 128_000,
    "o1": 100_000,
    "o3": 100_000,
    "o4": 100_000,
    "claude-haiku-4-5": 64_000,
    "claude-sonnet-4-5": 64_000,
    "claude-opus-4-5": 64_000,
    "claude-": 128_000,
    "gemini-2.5": 65_536,
    "gemini-3": 65_536,
    "gemini-4": 1_048_576,
    "deepseek-v4": 393_216,
}


def max_output_tokens(model: str, declared: Mapping[str, int | None] | None = None) -> int | None:
    """The longest answer of a model, None if it is not known.

    ``declared`` holds exact names; None there means that the model is not to be clamped.
    """
    if declared and model in declared:
        return declared[model]
    return _published(model)


@lru_cache(maxsize=1024)
def _published(model: str) -> int | None:
    own = model.rpartition("/")[2]  # a router puts the provider before it
    found = max(filter(own.startswith, _MAX_OUTPUT_TOKENS), key=len, default="")
    return _MAX_OUTPUT_TOKENS[found] if found else None
