"""Print what metering adds to a call, and how many calls a store can count; or run ``chaos``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from time import perf_counter

from project.provider import ProviderProcess
from tests.bench import flips, latency, ledger, pairs, scripts, weight
from tests.bench.figures import progress, show
from tests.bench.stage import stage
from tests.chaos.__main__ import main as chaos
from tests.corpus import FAMILIES


def main() -> None:
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer samples: half a minute")
    parser.add_argument("--rows", type=int, help="of the fullest ledger: 1,000,000, quick 10,000")
    asked = parser.parse_args()
    number, seconds = (40, 0.3) if asked.quick else (200, 2.0)
    most_rows = (10_000 if asked.quick else 1_000_000) if asked.rows is None else asked.rows
    began = perf_counter()
    progress("starting PostgreSQL, Redis and a provider")
    with stage() as provider:
        show_latency(provider, number)
        show_pairs(seconds)
        show_ledger(sorted({0, min(10_000, most_rows), most_rows}), number)
        show_weight(number)
        show_flips(number // 10)
    progress(f"done in {perf_counter() - began:.0f} s")


def show_latency(provider: ProviderProcess, number: int) -> None:
    show(
        f"Added latency per call, milliseconds (medians of {number} pairs; four budgets)",
        ["store", "client", "unmetered", "metered", "added", "added, 1 in 20 above"],
        list(latency.rows(provider, number)),
    )
    show(
        f"A commit of a few bytes, milliseconds ({number} times)",
        ["store", "median", "1 in 20 above"],
        list(latency.commits(number)),
    )
    show(
        f"Refusal through the OpenAI SDK, milliseconds ({number} times)",
        ["store", "median", "1 in 20 above"],
        list(latency.refusals(provider, number)),
    )


def show_pairs(seconds: float) -> None:
    show(
        "Pairs of reserve and settle per second, four budgets",
        ["store", "callers", "pairs/s", "per CPU second", "beside", "per second", "ratio"],
        list(pairs.rows(seconds)),
    )
    show(
        "Scripts by a thin client, four budgets and the outbox; ratios to the empty script",
        ["command", "per second", "server µs", "of its rate", "of its server time"],
        list(scripts.rows(int(1000 * seconds))),
    )
    show(
        "Pairs of scripts per second over one connection, and over redis.asyncio's pool",
        ["callers", "one connection", "pool", "ratio"],
        list(scripts.together(int(2000 * seconds))),
    )
    show("SQL statements per metered call", ["store", "statements"], list(pairs.statements()))


def show_ledger(sizes: Sequence[int], number: int) -> None:
    show(
        "Taking over into the ledger",
        ["store", "calls", "number", "events", "ledger rows/s"],
        list(ledger.drained(50 * number)),
    )
    show(
        f"Milliseconds by rows in the ledger, four budgets (medians of {number}, one caller)",
        ["store", "rows", "reserve", "1 in 20 above", "settle", "counters lost", "bytes a row"],
        list(ledger.rows(sizes, number)),
    )


def show_weight(number: int) -> None:
    show(
        "Estimator, microseconds per 1,000 characters, by family",
        ["text", *FAMILIES],
        list(weight.estimates(rounds=number // 20)),
    )
    show(
        f"Memory of this process per call in flight, bytes ({10 * number} calls)",
        ["store", "bytes"],
        list(weight.in_flight(10 * number)),
    )


def show_flips(number: int) -> None:
    show(
        f"From engage() to its effect, milliseconds (medians of {number}; four processes call)",
        ["store", "calls", "returned", "first refusal", "last admitted began", "admitted after"],
        list(flips.rows(number)),
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["chaos"]:
        sys.exit(chaos(sys.argv[2:]))
    main()
