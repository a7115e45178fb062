"""One try to reserve: what asks the store is written once, and driven in a thread or on a loop."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, TypeVar

from token_allowance import blocking, conf, threads
from token_allowance.exceptions import StoreUnavailable
from token_allowance.stores.awaited import AwaitedStore
from token_allowance.stores.base import Decision, Request, Store

M = TypeVar("M")

#: Yields what is to be asked, is sent what the store decides or thrown what it raises, and returns
#: what was made. Between two questions it may block, unless that is forbidden; then it raises
#: WouldBlock and has changed nothing.
Try = Generator[Request, Decision, M]
Within = Callable[[Callable[[], M]], M]  # what surrounds the part of a try that is in a thread


def finished(
    tried: Try[M], request: Request | None = None, failed: StoreUnavailable | None = None
) -> M:
    """What the try makes. ``request`` is what it waits for, if it has begun, and ``failed`` why
    that could not be asked."""
    store: Store = conf.store()
    try:
        request = tried.throw(failed) if failed else request or next(tried)
        while True:
            try:
                decision = store.reserve(request)
            except BaseException as error:
                request = tried.throw(error)
            else:
                request = tried.send(decision)
    except StopIteration as end:
        made: M = end.value
        return made


async def afinished(
    begin: Callable[[], Try[M]],
    within: Within[M],
    abandoned: Callable[[M], object],
    *,
    quick: bool = True,
) -> M:
    """The same from a coroutine: in a thread; before, if ``quick``, on its loop until it blocks.

    Cancelling it leaves nothing held: ``abandoned`` is given what a thread has made for nobody.
    """
    store = conf.store()
    rest: Callable[[], M] = lambda: finished(begin())  # noqa: E731
    if quick and isinstance(store, AwaitedStore):
        tried = begin()
        try:
            request, failed = await _unusual(store, tried)
            rest = lambda: finished(tried, request, failed)  # noqa: E731
        except blocking.WouldBlock:
            pass
        except _Made as made:
            return made.what  # type: ignore[no-any-return]
    return await threads.acall(within, rest, abandoned=abandoned)


class _Made(Exception):
    """No error: how a coroutine passes StopIteration on."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.what = what


async def _unusual(store: AwaitedStore, tried: Try[Any]) -> tuple[Request, StoreUnavailable | None]:
    """The question that a thread has to ask, or why it could not be; _Made if there was none."""
    decision: Decision | None = None
    while True:
        try:
            with blocking.forbidden():
                request = next(tried) if decision is None else tried.send(decision)
        except StopIteration as end:
            raise _Made(end.value) from None
        try:
            decision = await store.areserve(replace(request, ticket=None))
        except StoreUnavailable as error:
            return request, error
        except BaseException:  # cancelled
            tried.close()
            threads.later(store.pay)
            raise
        if decision is None:
            return request, None
