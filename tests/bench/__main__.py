"""Print what metering adds to a call, and how many calls a store can count."""

from __future__ import annotations

import argparse
from time import perf_counter

from tests.bench import latency, pairs
from tests.bench.figures import progress, show
from tests.bench.stage import stage


def main() -> None:
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer samples: ten seconds or so")
    quick = parser.parse_args().quick
    number, seconds = (40, 0.3) if quick else (200, 2.0)
    began = perf_counter()
    progress("starting PostgreSQL and a provider")
    with stage() as provider:
        show(
            f"Added latency per call, milliseconds (medians of {number} pairs; four budgets)",
            ["store", "client", "unmetered", "metered", "added", "added, 1 in 20 above"],
            list(latency.rows(provider, number)),
        )
        show(
            f"Refusal through the OpenAI SDK, milliseconds ({number} times)",
            ["store", "median", "1 in 20 above"],
            list(latency.refusals(provider, number)),
        )
        show(
            "Pairs of reserve and settle per second, four budgets",
            ["store", "threads", "pairs/s", "SELECT 1/s", "ratio"],
            list(pairs.rows(seconds)),
        )
        show("SQL statements per metered call", ["store", "statements"], list(pairs.statements()))
    progress(f"done in {perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
