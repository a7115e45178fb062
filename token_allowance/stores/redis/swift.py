"""The usual case without a thread: asked and decided on the event loop itself.

Whatever is unusual, a counter to open, a policy to confirm, a server that moved or failed, is left
to the thorough way, in a thread. Repeating a question there is safe.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from redis.exceptions import RedisError, TimeoutError

from token_allowance.exceptions import StoreUnavailable
from token_allowance.stores import connections
from token_allowance.stores.base import Decision, Outcome, Request, Settlement
from token_allowance.stores.redis import ends, questions, versions
from token_allowance.stores.redis import holds as held
from token_allowance.stores.redis.asking import Question
from token_allowance.stores.redis.names import Epoch
from token_allowance.stores.redis.wire import Wire

if TYPE_CHECKING:
    from token_allowance.stores.redis.multiplexed import Multiplexed
    from token_allowance.stores.redis.store import RedisStore

PATIENT = 8  # what a loop asks before it gets a connection: async_to_sync makes loops of one call
HAVE_HIREDIS = find_spec("hiredis") is not None


async def reserve(store: RedisStore, request: Request) -> Decision | None:
    """ADMITTED or DEGRADE; None if ``store.reserve`` has to decide."""
    if request.ticket or request.row["idempotency_key"]:
        return None
    holds = held.of_budgets(request.budgets, request.amounts)
    names = store.asking.names
    asked = questions.reserve(names, request, holds, "", store.fresh, store.events_most)
    try:
        answer = await store.swift.ask(asked)
        if answer and answer[0] == b"confirm" and await store.swift.confirm(store):
            answer = await store.swift.ask(asked)
    except BaseException:  # cancelled: it may be held all the same
        store.owe(request)
        raise
    if answer and answer[0] == b"degrade":
        return Decision(Outcome.DEGRADE, questions.rooms(request, answer[2:]))
    if answer is None or answer[0] != b"admitted":
        return None
    store.remember(request.id, holds)
    return Decision(Outcome.ADMITTED)


async def settle(store: RedisStore, settlement: Settlement) -> Outcome | None:
    """The outcome if this process holds it, and nothing else happened to it meanwhile."""
    holds, row = store.known(settlement.id), settlement.row
    if holds is None:
        return None
    asked = ends.question(store.asking.names, settlement, row, holds, ends.NORMAL)
    answer = await store.swift.ask(asked)
    if answer is None or answer[0] != b"settled":
        return None
    store.forget(settlement.id)
    store.told(settlement)
    return Outcome(row["state"])


_all: WeakSet[Swift] = WeakSet()


def _begin_again() -> None:
    for each in _all:
        each.begin()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork either
    os.register_at_fork(after_in_child=_begin_again)


class Swift:
    """One multiplexed connection per event loop, for loops that live longer than a call or two."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.begin()
        _all.add(self)

    def begin(self) -> None:
        """With no connection: a child of a fork asks by its own."""
        self._links: WeakKeyDictionary[Any, asyncio.Task[Multiplexed | None]] = WeakKeyDictionary()
        self._asked: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._confirming: WeakKeyDictionary[Any, asyncio.Task[int]] = WeakKeyDictionary()

    async def ask(self, question: Question) -> Sequence[Any] | None:
        """The script's answer; None if the thorough way has to find out.

        StoreUnavailable if the server is silent: nobody shall wait for it a second time.
        """
        if not HAVE_HIREDIS or self._wire.breaker.open:
            return None
        try:
            link = await self._link()
            if link is None:
                return None
            script, keys, arguments = question
            if arguments and isinstance(arguments[0], Epoch):
                arguments = [f"{arguments[0]}:{link.run}", *arguments[1:]]
            answer = await link.ask(("EVALSHA", script.sha, len(keys), *keys, *arguments))
        except TimeoutError as error:
            self._silent()
            raise StoreUnavailable(
                "The budget store's Redis is silent. Nothing was sent to a model."
            ) from error
        except (RedisError, OSError):
            return None
        return answer if isinstance(answer, list) else None

    async def confirm(self, store: RedisStore) -> bool:
        """Has the policy's version been confirmed? One thread asks for all tasks of a loop."""
        if connections.in_tests():  # the database may be that of another thread
            return False
        loop = asyncio.get_running_loop()
        task = self._confirming.get(loop)
        if task is None or task.done():
            asking = asyncio.to_thread(versions.confirm, store)
            task = self._confirming[loop] = loop.create_task(asking)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(task) != versions.UNKNOWN
        except StoreUnavailable:
            return False

    async def _link(self) -> Multiplexed | None:
        loop = asyncio.get_running_loop()
        task = self._links.get(loop)
        if task is None:
            count = self._asked[loop] = self._asked.get(loop, 0) + 1
            if count <= PATIENT:
                return None
        if task is None or (task.done() and self._failed(task)):
            task = self._links[loop] = loop.create_task(self._connect())
        return task.result() if task.done() else await asyncio.shield(task)

    def _silent(self) -> None:
        """A server that does not answer counts as failed once, however many were asking."""
        task = self._links.get(asyncio.get_running_loop())
        if task is not None and self._failed(task):
            del self._links[asyncio.get_running_loop()]
            self._wire.breaker.failed()

    @staticmethod
    def _failed(task: asyncio.Task[Multiplexed | None]) -> bool:
        if task.cancelled() or task.exception() is not None:
            return True
        link = task.result()
        return link is not None and link.closed

    async def _connect(self) -> Multiplexed | None:
        """None where the connection is encrypted: threads do that."""
        from token_allowance.stores.redis.multiplexed import Multiplexed

        link = await asyncio.to_thread(self._wire.link)
        if isinstance(link.connection._sock, ssl.SSLSocket):
            link.close()
            return None
        return Multiplexed(link, self._wire.timeout_seconds)
