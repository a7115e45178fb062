"""Pairs of reserve and settle per second with four budgets, beside the least a store can do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha1
from threading import Barrier
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from tests.bench.figures import progress
from tests.bench.stage import OPENAI_MODEL, STORES, using

if TYPE_CHECKING:
    from token_allowance.reservations import Reservation
    from token_allowance.tries import Try
    from token_allowance.waiting import Place

THREADS = (1, 16)
TASKS = 100
WARM_UP = 20


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
            pairs, of_cpu = asyncio.run(_tasks(seconds, _apair))
            in_threads, _ = asyncio.run(_tasks(seconds, _pair_in_threads))
            own = [store, f"{TASKS} tasks", f"{pairs:,.0f}", f"{of_cpu:,.0f}"]
            yield [*own, "in threads", f"{in_threads:,.0f}", f"{pairs / in_threads:.2f}"]
        progress(f"pairs on {store} are counted")


def pair() -> None:
    """What metering does for one call, without HTTP: plan, price, reserve, settle."""
    from token_allowance.usage import Usage

    hold().settle(Usage(input_tokens=90, output_tokens=80))


def hold() -> Reservation:
    """The first half of a pair."""
    from token_allowance.tries import finished

    return finished(_try(None))


def _try(place: Place | None) -> Try[Reservation]:
    from token_allowance.attribution import Charge
    from token_allowance.decisions import reserving
    from token_allowance.limits import Attribution
    from token_allowance.plans import Attempt

    attempt = Attempt(
        provider="openai", model=OPENAI_MODEL, input_tokens=100, max_output_tokens=100
    )
    who = Attribution(tenant="acme", user="ada", feature="bench")
    return reserving(lambda: attempt, who, Charge(), place)


async def _apair() -> None:
    """A pair as a coroutine makes it: on its loop, where the store can."""
    from token_allowance.endings import aend
    from token_allowance.usage import Usage
    from token_allowance.waiting import areserve

    held = await areserve(_try)
    await aend(lambda: held.settle(Usage(input_tokens=90, output_tokens=80)))


async def _pair_in_threads() -> None:
    from token_allowance import threads
    from token_allowance.usage import Usage

    held = await threads.acall(hold)
    await threads.acall(held.settle, Usage(input_tokens=90, output_tokens=80))


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


async def _tasks(seconds: float, one: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """The same by tasks of one event loop."""
    for _ in range(WARM_UP):
        await one()

    async def repeat(end: float) -> int:
        done = 0
        while perf_counter() < end:
            await one()
            done += 1
        return done

    began, cpu = perf_counter(), process_time()
    total = sum(await asyncio.gather(*(repeat(began + seconds) for _ in range(TASKS))))
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
