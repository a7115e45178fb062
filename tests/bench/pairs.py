"""Pairs of reserve and settle per second with four budgets, beside the least a store can do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha1
from threading import Barrier
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from tests.bench.figures import progress
from tests.bench.stage import OPENAI_MODEL, STORES, using

if TYPE_CHECKING:
    from token_allowance.reservations import Reservation

THREADS = (1, 16)
TASKS = 100


def rows(seconds: float) -> Iterator[list[str]]:
    """One row per store and number of threads."""
    from token_allowance import conf

    for store in STORES:
        with using(store):
            for threads in THREADS:
                pairs, of_cpu = per_second(pair, threads, seconds)
                own = [store, f"{threads} threads", f"{pairs:,.0f}", f"{of_cpu:,.0f}"]
                for name, work in _least(conf.store()):
                    least, _ = per_second(work, threads, seconds / 2)
                    yield [*own, name, f"{least:,.0f}", f"{pairs / least:.2f}"]
                    own = ["", "", "", ""]
                if own[0]:
                    yield [*own, "-", "-", "-"]
            pairs, of_cpu = asyncio.run(_tasks(seconds))
            yield [store, f"{TASKS} tasks", f"{pairs:,.0f}", f"{of_cpu:,.0f}", "-", "-", "-"]
        progress(f"pairs on {store} are counted")


def pair() -> None:
    """What metering does for one call, without HTTP: plan, price, reserve, settle."""
    from token_allowance.usage import Usage

    hold().settle(Usage(input_tokens=90, output_tokens=80))


def hold() -> Reservation:
    """The first half of a pair."""
    from token_allowance.attribution import Charge
    from token_allowance.decisions import reserve
    from token_allowance.limits import Attribution
    from token_allowance.plans import Attempt

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


def per_second(work: Callable[[], Any], threads: int, seconds: float) -> tuple[float, float]:
    """How often in a second, and in a second of this process's processor time."""

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
        began, used = perf_counter(), process_time()
        total = sum(one.result() for one in running)
    return total / (perf_counter() - began), total / (process_time() - used)


async def _tasks(seconds: float) -> tuple[float, float]:
    """The same by tasks of one event loop, which leave the store to threads."""
    from token_allowance import threads
    from token_allowance.usage import Usage

    used = Usage(input_tokens=90, output_tokens=80)
    end = perf_counter() + seconds

    async def repeat() -> int:
        done = 0
        while perf_counter() < end:
            call = await threads.acall(hold)
            await threads.acall(call.settle, used)
            done += 1
        return done

    began, cpu = perf_counter(), process_time()
    total = sum(await asyncio.gather(*(repeat() for _ in range(TASKS))))
    return total / (perf_counter() - began), total / (process_time() - cpu)


def _least(store: Any) -> list[tuple[str, Callable[[], Any]]]:
    """The least that the store's own connections can do: an empty transaction, or an empty script
    and no script at all."""
    if hasattr(store, "wire"):
        empty = _empty_script()
        return [
            ("empty script", lambda: store.wire.call(empty, [], [])),
            ("PING", lambda: store.wire.execute("PING")),
        ]
    if not hasattr(store, "run"):
        return []

    def begin_and_commit(connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN IMMEDIATE" if connection.vendor == "sqlite" else "BEGIN")
            cursor.execute("COMMIT")

    return [("empty transaction", lambda: store.run(begin_and_commit))]


def _empty_script() -> Any:
    from token_allowance.stores.redis.scripts import Script

    empty = Script.__new__(Script)
    empty.name, empty.source = "empty", b"return 1"
    empty.sha = sha1(empty.source, usedforsecurity=False).hexdigest().encode()
    return empty
