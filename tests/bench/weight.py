"""What estimating costs in time, and a call in flight in memory."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from time import perf_counter

from tests.bench.figures import progress
from tests.bench.pairs import hold
from tests.bench.stage import STORES, using
from tests.corpus import FAMILIES, KINDS, chunks

SEEN = ("English prose", "Python", "JSON, compact", "Chinese, simplified", "Russian", "base64")


def estimates(rounds: int) -> Iterator[list[str]]:
    """One row per kind of text: microseconds for 1,000 characters, by family."""
    from token_allowance.estimate import text_tokens

    for kind in SEEN:
        texts = chunks(kind)
        row = [kind]
        for family in FAMILIES:
            began = perf_counter()
            for _ in range(rounds):
                for text in texts:
                    text_tokens(text, family)
            characters = rounds * sum(map(len, texts))
            row.append(f"{(perf_counter() - began) * 1e9 / characters:.1f}")
        yield row
    progress(f"the estimator is timed on {len(SEEN)} of {len(KINDS)} kinds of text")


def in_flight(number: int) -> Iterator[list[str]]:
    """One row per store: bytes of this process for each call that is reserved and not settled."""
    for store in STORES:
        with using(store):
            hold().release()
            gc.collect()
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            calls = [hold() for _ in range(number)]
            gc.collect()
            after = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            for call in calls:
                call.release()
        yield [store, f"{(after - before) / number:,.0f}"]
    progress("memory is measured")
