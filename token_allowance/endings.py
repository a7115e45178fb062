"""How a coroutine ends its calls: on the event loop where the store can, else in a thread.

An end that has been decided is told to the store whatever becomes of the coroutine, or of its loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from functools import partial

from token_allowance import blocking, conf, settlements, signals, threads
from token_allowance.settlements import Make
from token_allowance.stores.awaited import AwaitedStore

_ending: set[asyncio.Task[None]] = set()  # a loop itself remembers its tasks only weakly


async def aend(end: Callable[[], object]) -> None:
    """Run what ends a call. Cancelled, it goes on: the answer is there, and has to be charged."""
    store = conf.store()
    if not isinstance(store, AwaitedStore):
        await threads.acall(end)
        return
    made: list[Make] = []
    try:
        with blocking.forbidden(), settlements.put_aside(made):
            end()
    except blocking.WouldBlock:
        await threads.acall(end)
    finally:
        if made:
            task = asyncio.ensure_future(_settled(store, made))
            _ending.add(task)
            task.add_done_callback(_ending.discard)
            await asyncio.shield(task)


async def _settled(store: AwaitedStore, made: list[Make]) -> None:
    for make in made:
        await _told(store, make)
    settlements.apply_waiting()


async def _told(store: AwaitedStore, make: Make) -> None:
    try:
        with blocking.forbidden():
            settlement = make()
        make = lambda: settlement  # noqa: E731 - made once: it gives back to the caps
        outcome = await store.asettle(settlement)
    except Exception:  # whatever it is: the thread finds out, and knows what to do
        outcome = None
    except BaseException:  # the loop is being closed
        threads.later(partial(copy_context().run, settlements.apply, make))
        raise
    if outcome is None:
        await threads.acall(settlements.apply, make)
    elif signals.call_finished.receivers:
        await threads.acall(settlements.tell, outcome, settlement.row)
    else:
        settlements.tell(outcome, settlement.row)
