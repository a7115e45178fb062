"""Pairs of reserve and settle per second with four budgets, beside an empty transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tests.bench.figures import progress
from tests.bench.stage import OPENAI_MODEL, STORES, using

if TYPE_CHECKING:
    from token_allowance.reservations import Reservation

THREADS = (1, 16)


def rows(seconds: float) -> Iterator[list[str]]:
    """One row per store and number of threads."""
    from token_allowance import conf

    for store in STORES:
        with using(store):
            empty = _empty_transaction(conf.store())
            for threads in THREADS:
                pairs = per_second(pair, threads, seconds)
                empties = per_second(empty, threads, seconds / 2) if empty else None
                yield [
                    store,
                    str(threads),
                    f"{pairs:,.0f}",
                    f"{empties:,.0f}" if empties else "-",
                    f"{pairs / empties:.2f}" if empties else "-",
                ]
        progress(f"pairs on {store} are counted")


def pair() -> None:
    """What metering does for one call, without HTTP: plan, price, reserve, settle."""
    from token_allowance.usage import Usage

    hold().settle(Usage(input_tokens=90, output_tokens=80))


def hold() -> Reservation:
    """The first half of a pair."""
    from token_allowance.attribution import Charge
    from token_allowance.limits import Attribution
    from token_allowance.plans import Attempt
    from token_allowance.reservations import reserve

    attempt = Attempt(
        provider="openai", model=OPENAI_MODEL, input_tokens=100, max_output_tokens=100
    )
    return reserve(attempt, Attribution(tenant="acme", user="ada", feature="bench"), Charge())


def statements() -> Iterator[list[str]]:
    """How many SQL statements one pair sends, by store; each is a round trip to PostgreSQL."""
    from token_allowance import conf

    for store in STORES:
        with using(store):
            pair()  # counters, policy and connection exist from now on
            sent: list[str] = []

            def note(execute: Any, sql: str, *arguments: Any, sent: list[str] = sent) -> Any:
                sent.append(sql)
                return execute(sql, *arguments)

            run = getattr(conf.store(), "run", None)
            if run:
                run(lambda connection, note=note: connection.execute_wrappers.append(note))
            pair()
            if run:
                run(lambda connection, note=note: connection.execute_wrappers.remove(note))
            yield [store, str(len(sent))]


def per_second(work: Callable[[], Any], threads: int, seconds: float) -> float:
    start = Barrier(threads + 1)

    def repeat() -> int:
        work()
        start.wait()
        done, end = 0, perf_counter() + seconds
        while perf_counter() < end:
            work()
            done += 1
        return done

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(repeat) for _ in range(threads)]
        start.wait()
        began = perf_counter()
        total = sum(one.result() for one in running)
    return total / (perf_counter() - began)


def _empty_transaction(store: Any) -> Callable[[], Any] | None:
    """The least that the store's own connections can do: begin one that may write, and commit."""
    if not hasattr(store, "run"):
        return None

    def begin_and_commit(connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN IMMEDIATE" if connection.vendor == "sqlite" else "BEGIN")
            cursor.execute("COMMIT")

    return lambda: store.run(begin_and_commit)
