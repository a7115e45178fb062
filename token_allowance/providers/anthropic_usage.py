"""The usage objects of Anthropic's messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from token_allowance.providers.fields import Figures, label, mappings
from token_allowance.usage import NAMES, Usage


def read_usage(counts: Mapping[str, Any]) -> tuple[Usage | None, tuple[str, ...]]:
    """The normal form of an Anthropic usage object, and its flags. None if it says nothing.

    Its ``input_tokens`` leaves the cache out, so all input is the sum of three (cases C01, C02).
    Cache writes are the short kind where the split does not say otherwise (case C05).
    """
    figures = Figures(counts)
    short = figures.get("cache_creation", "ephemeral_5m_input_tokens")
    long = figures.get("cache_creation", "ephemeral_1h_input_tokens")
    split = (short or 0) + (long or 0)
    cache_write = figures.get("cache_creation_input_tokens")
    if cache_write is None:
        cache_write = split
    figures.within(split, cache_write)
    cache_write = max(cache_write, split)
    cache_read = figures.get("cache_read_input_tokens") or 0
    output = figures.get("output_tokens") or 0
    thinking = figures.get("output_tokens_details", "thinking_tokens") or 0
    usage = Usage(
        input_tokens=(figures.get("input_tokens") or 0) + cache_read + cache_write,
        output_tokens=output,
        cache_read_tokens=cache_read,
        cache_write_tokens=cache_write,
        cache_write_1h_tokens=long or 0,
        reasoning_tokens=figures.within(thinking, output),
        web_searches=figures.get("server_tool_use", "web_search_requests") or 0,
    )
    flags = ["anomaly"] if figures.anomaly else []
    if cache_write and short is None and long is None:
        flags.append("cache_ttl_assumed")
    if output and not usage.input_tokens:
        flags.append("input_missing")
    return usage or None, tuple(flags)


def read_iterations(
    counts: Mapping[str, Any], usage: Usage | None
) -> tuple[Usage | None, tuple[tuple[str, Usage], ...]]:
    """The usage with what its totals leave out, less what other models did; and what those did.

    The totals never hold a compaction. Whether they hold the work of another model (an advisor, a
    fallback), the sums of the iterations tell; in doubt they do not, so that nothing is free.
    """
    own, kept_out = Usage(), Usage()
    others: list[tuple[str, Usage]] = []
    for iteration in mappings(counts.get("iterations")):
        used, _ = read_usage(iteration)
        kind, model = iteration.get("type"), label(iteration.get("model"))
        if used is None:
            continue
        if kind == "compaction":
            kept_out += used
        elif model and kind != "message":
            others.append((model, used))
        else:
            own += used
    if usage is None or not (others or kept_out):
        return usage, ()
    theirs = sum((used for _, used in others), Usage())
    if usage.total_tokens == (own + theirs).total_tokens:
        usage = _less(usage, theirs)
    return usage + kept_out, tuple(others)


def _less(whole: Usage, part: Usage) -> Usage:
    return Usage(*(max(0, getattr(whole, name) - getattr(part, name)) for name in NAMES))
