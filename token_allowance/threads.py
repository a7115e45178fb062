"""Where blocking work runs: store operations never run on an event loop or in the collector."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

from token_allowance.stores.connections import in_tests, inside_testcase

P = ParamSpec("P")
T = TypeVar("T")
WORKERS = 8
EXIT_SECONDS = 5.0
logger = logging.getLogger("token_allowance")


class _Workers:
    """This process's threads; made anew after a fork, whose child has none of them."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="token-allowance")
        self.queue: SimpleQueue[Callable[[], object]] = SimpleQueue()
        threading.Thread(target=self._run, name="token-allowance-later", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                self.queue.get()()
            except BaseException:  # the thread goes on: others' work waits behind this one's
                logger.exception("token_allowance: finishing a call in the background failed")


class _Collecting(threading.local):
    """Is the garbage collector running in this thread?"""

    now = False

    def watch(self, phase: str, info: object) -> None:
        self.now = phase == "start"


_collecting = _Collecting()
gc.callbacks.append(_collecting.watch)

_workers: _Workers | None = None
_lock = threading.RLock()  # the collector may ask for the workers while they are being made


def workers() -> _Workers:
    global _workers
    found = _workers
    if found is None or found.pid != os.getpid():
        with _lock:
            if _workers is None or _workers.pid != os.getpid():
                made = _Workers()
                if _workers is None or _workers.pid != os.getpid():
                    _workers = made
            found = _workers
    return found


def call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run from synchronous code: here or, if this thread runs an event loop, in a helper thread."""
    if not on_loop():
        return function(*args, **kwargs)
    context = copy_context()
    return workers().pool.submit(lambda: context.run(function, *args, **kwargs)).result()


async def acall(
    function: Callable[..., T], *args: Any, abandoned: Callable[[T], object] | None = None
) -> T:
    """Run from a coroutine. The work is finished even if the coroutine is cancelled: ``abandoned``
    is then given its result, and work that has it may also be left out when it has not begun.
    """
    context = copy_context()
    if in_tests():
        asked = asyncio.ensure_future(sync_to_async(inside_testcase, thread_sensitive=True)())
        try:
            inside = await asyncio.shield(asked)
        except asyncio.CancelledError:
            if abandoned is None:
                later(lambda: context.run(function, *args))
            raise
        if inside:
            return await sync_to_async(function, thread_sensitive=True)(*args)
    future = workers().pool.submit(context.run, function, *args)
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if abandoned is not None:
            future.add_done_callback(lambda done: _hand_over(done, abandoned))
        raise  # the callback runs here if the work was done just before: it must only enqueue


def finish(function: Callable[[], object]) -> None:
    """Run now, as ``call`` does; in the background if the garbage collector is what ended us.

    It may run between any two lines of this thread, also where a lock is held that the work needs.
    """
    if _collecting.now:
        later(function)
    else:
        call(function)


def later(function: Callable[[], object]) -> None:
    """Run soon in the background; only enqueues, so it is safe in ``__del__``."""
    workers().queue.put(function)


def drain() -> None:
    """Wait, at most EXIT_SECONDS, until what was queued so far is done."""
    if _workers is not None and _workers.pid == os.getpid():
        done = threading.Event()
        _workers.queue.put(done.set)
        if not done.wait(EXIT_SECONDS):
            logger.error("token_allowance: calls were still being finished at the process's end")


def _hand_over(done: Future[T], abandoned: Callable[[T], object]) -> None:
    if not done.cancelled() and done.exception() is None:
        later(lambda: abandoned(done.result()))


def on_loop() -> bool:
    """Does an event loop run in this thread?"""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
