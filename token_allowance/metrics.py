"""What this process has done, as counters that only grow, and what it has measured: for exporters.

Labels are of few values: never a person's, a tenant's, or a model's name as a request gives it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

logger = logging.getLogger("token_allowance")

#: Calls finished. Labels: provider; state ("settled", "released").
CALLS_FINISHED = "calls_finished"
#: Calls finished with this flag, each of a call's flags once. Labels: provider, flag.
CALLS_FLAGGED = "calls_flagged"
#: Calls of which nothing more was heard until their lease ended.
CALLS_EXPIRED = "calls_expired"
#: Settlements that told something else than the one before. Labels: provider.
CALLS_CONFLICTING = "calls_conflicting"
#: Calls refused. Labels: code, provider.
CALLS_REFUSED = "calls_refused"
#: What finished calls were charged, in micro-dollars and tokens. Labels: provider.
COST_MICROS = "cost_micros"
INPUT_TOKENS = "input_tokens"
OUTPUT_TOKENS = "output_tokens"
#: Of that cost, what no provider has confirmed. Labels: provider.
ESTIMATED_MICROS = "estimated_micros"
#: What calls were charged above their reservation. Labels: provider.
OVERAGE_MICROS = "overage_micros"

#: Measured, not counted. How long one try to reserve took. Labels: outcome ("admitted", or the
#: class of what was raised, as "AllowanceExceeded").
RESERVE_SECONDS = "reserve_seconds"
#: From the reservation to the end of the call. Labels: provider, model.
CALL_SECONDS = "call_seconds"
#: Tokens of one call. Labels: provider, model, type ("input", "output").
CALL_TOKENS = "call_tokens"

Labels = tuple[tuple[str, str], ...]  # (name, value) pairs, in the order that count() was given
Counted = tuple[str, Labels, int]  # a counter's name and labels, and how much to add
Measured = tuple[str, Labels, float]  # what was measured, of what, and the figure


class Exporter(Protocol):
    """What passes figures on to a monitoring system. It may not wait; what it raises is logged."""

    def add(self, counted: Sequence[Counted]) -> None: ...

    def measure(self, measured: Sequence[Measured]) -> None: ...


_exporters: list[Exporter] = []

_counts: dict[tuple[str, Labels], int] = {}
_lock = threading.Lock()


def follow(exporter: Exporter) -> None:
    """Tell this exporter of everything from now on; one of each class is enough."""
    if not any(type(other) is type(exporter) for other in _exporters):
        _exporters.append(exporter)


def unfollow(exporter: Exporter) -> None:
    _exporters.remove(exporter)


def followed() -> bool:
    """Does anybody take what is measured?"""
    return bool(_exporters)


def add(counted: Sequence[Counted]) -> None:
    """Add to counters, all in one step."""
    with _lock:
        for name, labels, more in counted:
            _counts[name, labels] = _counts.get((name, labels), 0) + more
    for exporter in _exporters:
        try:
            exporter.add(counted)
        except Exception:
            _fails(type(exporter).__name__)


def measure(measured: Sequence[Measured]) -> None:
    for exporter in _exporters:
        try:
            exporter.measure(measured)
        except Exception:
            _fails(type(exporter).__name__)


@lru_cache(maxsize=64)  # said once: each call would say it again
def _fails(name: str) -> None:
    """A disk that is full must cost no caller its answer, and no call its hold."""
    logger.exception("token_allowance: the exporter %s fails; its figures are wrong", name)


class timed:
    """``with timed(RESERVE_SECONDS):`` measures what is inside of it, by its outcome."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if _exporters:
            outcome = "admitted" if kind is None else kind.__name__
            seconds = time.perf_counter() - self._began
            measure([(self._name, (("outcome", outcome),), seconds)])


def count(name: str, more: int = 1, **labels: str) -> None:
    add([(name, tuple(labels.items()), more)])


def snapshot() -> dict[tuple[str, Labels], int]:
    """Every counter of this process by name and labels; what was never counted is not in it."""
    with _lock:
        return dict(_counts)


def value(name: str, **labels: str) -> int:
    """The sum of a counter over all labels that are not named."""
    wanted = set(labels.items())
    found = ((own, more) for (counter, own), more in snapshot().items() if counter == name)
    return sum(more for own, more in found if wanted <= set(own))


def reset() -> None:
    """Begin at zero, as a forked child does: what its parent had counted is exported by that."""
    global _lock
    _lock = threading.Lock()  # the parent's may be held by a thread that is not in the child
    _counts.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork either
    os.register_at_fork(after_in_child=reset)
