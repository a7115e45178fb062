"""Requests far longer than is usual: the arithmetic, without a database.

Lengths spread by factors, so their logarithms are compared: how far is the mean of the last calls
of a feature from the median of what quarters of an hour had, in units of their usual spread?
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from token_allowance.alerts.sums import Sums

LEAST_CALLS = 20  # of the last stretch
LEAST_QUARTERS = 12  # of the past, each with enough calls to have a mean
LEAST_QUARTER_CALLS = 5
LEAST_SPREAD = 0.2  # of the logarithm: a change by a fifth is nobody's concern
OF_NORMAL = 1.4826  # a median deviation times this is a standard deviation


@dataclass(frozen=True, slots=True)
class Length:
    """Tokens per call, now and usually, and how many spreads lie between them."""

    feature: str
    calls: int
    tokens: int
    usual_tokens: int
    z: float


def judge(feature: str, now: Sums, past: Sequence[Sums]) -> Length | None:
    """How unusual the last calls are; None if there is too little to say so."""
    means = [q.tokens / q.calls for q in past if q.calls >= LEAST_QUARTER_CALLS and q.tokens > 0]
    if now.calls < LEAST_CALLS or now.tokens <= 0 or len(means) < LEAST_QUARTERS:
        return None
    mean = now.tokens / now.calls
    middle, spread = spread_of(math.log(one) for one in means)
    spread = math.hypot(max(spread, LEAST_SPREAD), _error(now))
    z = (math.log(mean) - middle) / spread
    return Length(feature, now.calls, round(mean), round(math.exp(middle)), z)


def spread_of(values: Iterable[float]) -> tuple[float, float]:
    """The median, and the standard deviation that the median deviation stands for."""
    found = list(values)
    middle = median(found)
    return middle, OF_NORMAL * median(abs(one - middle) for one in found)


def _error(now: Sums) -> float:
    """How far the mean of so few calls strays by itself, as a share of it."""
    mean = now.tokens / now.calls
    variance = max(0.0, now.squared_tokens / now.calls - mean * mean)
    return math.sqrt(variance / now.calls) / mean
