"""The usage objects of OpenAI's APIs, and of the many servers that imitate them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from token_allowance.providers.fields import Figures, decimal, mapping, seconds
from token_allowance.usage import Usage

# The same count under the names of OpenAI, gateways (case C04), DeepSeek and LiteLLM. All of them
# lie within the prompt count: the shape is a matter of the API, never guessed from the figures.
_CACHE_READ = (
    ("prompt_tokens_details", "cached_tokens"),
    ("cached_tokens",),
    ("prompt_cache_hit_tokens",),
    ("cache_read_input_tokens",),
)
_CACHE_WRITE = (
    ("prompt_tokens_details", "cache_write_tokens"),
    ("prompt_tokens_details", "cache_creation_tokens"),
    ("cache_creation_tokens",),
    ("cache_creation_input_tokens",),
)
_CACHE_WRITE_LONG = ("prompt_tokens_details", "cache_write_tokens_details", "ttl_12h_tokens")
_CACHED_AUDIO = ("prompt_tokens_details", "cached_tokens_details", "audio_tokens")
_REASONING = (("completion_tokens_details", "reasoning_tokens"), ("reasoning_tokens",))
_NEWER_NAMES = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "input_tokens_details": "prompt_tokens_details",
    "input_token_details": "prompt_tokens_details",
    "output_tokens_details": "completion_tokens_details",
    "output_token_details": "completion_tokens_details",
}


def read_usage(counts: Mapping[str, Any]) -> tuple[Usage | None, tuple[str, ...]]:
    """The normal form of an OpenAI usage object, and its flags. None if it says nothing."""
    figures = Figures(counts)
    total = figures.get("total_tokens")
    completion = figures.get("completion_tokens")
    prompt = figures.get("prompt_tokens")
    if not prompt and total:
        prompt = max(total - (completion or 0), 0)
    prompt = prompt or 0
    if completion is None and total:
        completion = max(total - prompt, 0)
    completion = completion or 0
    cache_read = figures.within(figures.first(*_CACHE_READ), prompt)
    cache_write = figures.within(figures.first(*_CACHE_WRITE), prompt - cache_read)
    reasoning = figures.first(*_REASONING)
    surplus = 0 if total is None else total - prompt - completion
    if (reasoning and surplus == reasoning) or (total is None and reasoning > completion):
        output = completion + reasoning  # xAI counts reasoning beside the completion
    elif surplus > 0 and not (reasoning or cache_read or cache_write):
        output = completion + surplus  # Gemini's dialect hides its thoughts in the total
        figures.anomaly = True
    else:
        output = completion
        figures.anomaly |= surplus != 0
    heard, heard_again, seen = _media_in(figures, prompt, cache_read)
    spoken = figures.within(figures.get("completion_tokens_details", "audio_tokens") or 0, output)
    drawn = figures.get("completion_tokens_details", "image_tokens") or 0
    usage = Usage(
        input_tokens=prompt,
        output_tokens=output,
        cache_read_tokens=cache_read,
        cache_write_tokens=cache_write,
        cache_write_1h_tokens=figures.within(figures.get(*_CACHE_WRITE_LONG) or 0, cache_write),
        reasoning_tokens=figures.within(reasoning, output),
        input_audio_tokens=heard,
        output_audio_tokens=spoken,
        cache_read_audio_tokens=heard_again,
        input_image_tokens=seen,
        output_image_tokens=figures.within(drawn, output - spoken),
    )
    flags = ["anomaly"] if figures.anomaly else []
    if output and not prompt:
        flags.append("input_missing")
    return usage or None, tuple(flags)


def _media_in(figures: Figures, prompt: int, cache_read: int) -> tuple[int, int, int]:
    """Tokens of sound, of sound read from cache, and of pictures, all of them input (case C12).

    Where nearly all input is sound, some of what was cached must be sound, said or not.
    """
    heard = figures.within(figures.get("prompt_tokens_details", "audio_tokens") or 0, prompt)
    again = max(figures.get(*_CACHED_AUDIO) or 0, heard + cache_read - prompt)
    seen = figures.get("prompt_tokens_details", "image_tokens") or 0
    again = figures.within(again, min(heard, cache_read))
    return heard, again, figures.within(seen, prompt - heard)


def older_names(counts: Mapping[str, Any]) -> dict[str, Any]:
    """A usage object of the newer APIs (``input_tokens``) with the names of chat completions."""
    return {_NEWER_NAMES.get(name, name): value for name, value in counts.items()}


def read_newer(counts: Mapping[str, Any]) -> tuple[Usage | None, tuple[str, ...]]:
    """The same for the APIs that say ``input_tokens``; a duration instead of tokens is read too."""
    if counts.get("type") == "duration":
        heard = seconds(counts.get("seconds"))
        return (Usage(audio_seconds=heard) if heard else None), ()
    return read_usage(older_names(counts))


def reported_dollars(counts: Mapping[str, Any]) -> Decimal | None:
    """What a gateway says that the call costs; None if it does not say (case C17).

    With a key of the caller's own (``is_byok``) the gateway's ``cost`` is its fee alone, and what
    the model's provider charges stands beside it.
    """
    cost = decimal(counts.get("cost"))
    if cost is None or counts.get("is_byok") is not True:
        return cost
    upstream = decimal(mapping(counts.get("cost_details")).get("upstream_inference_cost"))
    return None if upstream is None else cost + upstream
