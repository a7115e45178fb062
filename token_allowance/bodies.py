"""Streaming bodies: each step runs under the charge of the request that started the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from asgiref.sync import async_to_sync
from django.http import FileResponse, HttpResponseBase, StreamingHttpResponse

from token_allowance.attribution import Charge, current, entered


class Body:
    """An iterator whose steps, and whose end, run under the charge; its consumer does not."""

    def __init__(self, inner: Iterator[Any], charge: Charge) -> None:
        self._inner = inner
        self._charge = charge

    def __iter__(self) -> Body:
        return self

    def __next__(self) -> Any:
        with entered(self._charge):
            try:
                return next(self._inner)
            finally:
                self._charge = current()  # a charge_to block may be open between two steps

    def close(self) -> None:
        if (close := getattr(self._inner, "close", None)) is not None:
            with entered(self._charge):
                close()


class AsyncBody:
    """The same for an asynchronous iterator."""

    def __init__(self, inner: AsyncIterator[Any], charge: Charge) -> None:
        self._inner = inner
        self._charge = charge
        self._ended = False
        self._closing: asyncio.Task[None] | None = None

    def __aiter__(self) -> AsyncBody:
        return self

    async def __anext__(self) -> Any:
        with entered(self._charge):
            try:
                return await anext(self._inner)
            except BaseException:
                self._ended = True
                raise
            finally:
                self._charge = current()

    async def aclose(self) -> None:
        self._ended = True
        if (aclose := getattr(self._inner, "aclose", None)) is not None:
            with entered(self._charge):
                await aclose()

    def close(self) -> None:
        """End a stream that was left before its end, now and not when it is collected.

        Django's handler calls this in a thread, its test client in the event loop's own.
        """
        if self._ended:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            async_to_sync(self.aclose)()
        else:
            self._closing = loop.create_task(self.aclose())


def charged(response: HttpResponseBase, charge: Charge) -> HttpResponseBase:
    """The response, its body wrapped if it is streamed. Files make no model calls: left alone."""
    if not isinstance(response, StreamingHttpResponse) or isinstance(response, FileResponse):
        return response
    # Private names of Django: the public property wraps the view's iterator, and then nobody can
    # close it.
    stream: Any = response
    inner = stream._iterator
    stream.streaming_content = AsyncBody(inner, charge) if stream.is_async else Body(inner, charge)
    # Django has added our close() behind the view's own; the first to come runs under the charge.
    closers = stream._resource_closers
    closers.insert(0, closers.pop())
    return response
