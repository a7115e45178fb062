"""From the flip of a switch to its effect, over four processes that call without a pause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from tests.bench.figures import milliseconds, progress
from tests.bench.stage import DURABLE, using
from tests.flippers import PROCESSES, Load, Process, flip

MEASURED = {DURABLE: "default", "SQLite": "sqlite", "Redis": "default"}


def rows(number: int) -> Iterator[list[str]]:
    """One row per store."""
    from django.conf import settings

    with ExitStack() as stack:
        made = [Process() for _ in range(PROCESSES)]
        for process in made:
            stack.callback(process.close)
        for process in made:
            process.read()
        for store, alias in MEASURED.items():
            with using(store):
                load = Load(made, alias, settings.TOKEN_ALLOWANCE["STORE"])
                flips = [flip(load, "bench") for _ in range(number)]
                load.rest()
            times = zip(
                *((f.returned, f.first_refused, f.last_admitted) for f in flips), strict=True
            )
            late, calls = (sum(getattr(f, name) for f in flips) for name in ("late", "calls"))
            yield [store, f"{calls:,}", *map(milliseconds, times), f"{late}"]
            progress(f"flips on {store} are measured")
