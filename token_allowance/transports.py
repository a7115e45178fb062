"""The metered transports, for httpx and httpx2 alike: reserve, send, pass the answer on, settle.

They sit inside the SDK's own HTTP client, so every real attempt is one reservation: retries and
tool loops included (case C51). A refusal reaches the caller as itself, once, with nothing sent.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

from token_allowance import retrievals, threads, waiting
from token_allowance.answers import Answer, Answering
from token_allowance.attribution import Charge
from token_allowance.endings import aend
from token_allowance.exceptions import AllowanceError
from token_allowance.meters import Meter, ModelCall
from token_allowance.outgoing import prepared, readable, tell
from token_allowance.providers.endpoints import Retrieval, retrieval
from token_allowance.reservations import Reservation
from token_allowance.retrievals import Fetched
from token_allowance.stores.base import Row

STAINLESS = "x-stainless-lang"  # SDKs that wrap and retry whatever a transport raises
NEVER_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError")


@lru_cache(maxsize=4)
def transports(hx: ModuleType) -> Transports:
    """The transport classes for one HTTP module (``httpx`` or ``httpx2``)."""
    return Transports(hx)


class Transports:
    def __init__(self, hx: ModuleType) -> None:
        self.sync = _sync_transport(hx)
        self.asynchronous = _async_transport(hx)


def _refused_response(hx: ModuleType) -> Any:
    """A response that raises our error where an SDK looks at it.

    What a transport raises, older SDKs wrap and retry; what ``raise_for_status`` or ``is_success``
    raises, they do not. The headers forbid a retry all the same.
    """

    class Refused(hx.Response):  # type: ignore[name-defined,misc]
        error: AllowanceError

        def raise_for_status(self) -> Any:
            raise self.error

        @property
        def is_success(self) -> bool:
            raise self.error

    def refused(request: Any, error: AllowanceError) -> Any:
        if STAINLESS not in request.headers:
            raise error
        body = {"error": {"type": error.code, "message": str(error)}}
        response = Refused(
            error.status,
            headers={"x-should-retry": "false", "content-type": "application/json"},
            content=json.dumps(body).encode(),
            request=request,
        )
        response.error = error
        return response

    return refused


def _sync_stream(hx: ModuleType) -> Any:
    class MeteredStream(hx.SyncByteStream):  # type: ignore[name-defined,misc]
        def __init__(self, inner: Any, answer: Answering) -> None:
            self.inner = inner
            self.answer = answer

        def __iter__(self) -> Iterator[bytes]:
            try:
                for chunk in self.inner:
                    if shown := self.answer.feed(chunk):
                        yield shown
                if rest := self.answer.rest():
                    yield rest
            except GeneratorExit:
                threads.finish(self.answer.closed)
                raise
            except BaseException as error:
                threads.finish(self.answer.failed)
                _explain(error, self.answer)
                raise
            threads.finish(self.answer.ended)

        def close(self) -> None:
            self.answer.leave()
            try:
                self.inner.close()
            finally:
                if not self.answer.over:
                    threads.finish(self.answer.closed)

        def __del__(self) -> None:
            if not self.answer.over:
                threads.later(_abandoned(self.answer, getattr(self.inner, "close", None)))

    return MeteredStream


def _sync_transport(hx: ModuleType) -> Any:
    refused, stream = _refused_response(hx), _sync_stream(hx)

    class MeteredTransport(hx.BaseTransport):  # type: ignore[name-defined,misc]
        def __init__(self, inner: Any, meter: Meter) -> None:
            self.inner = inner
            self.meter = meter

        def handle_request(self, request: Any) -> Any:
            charge = self.meter.charge()
            try:
                endpoint = None if charge.covered else self.meter.endpoint(request)
                content = request.read() if endpoint else b""
                call = self.meter.model_call(endpoint, request, content) if endpoint else None
                if call is None:
                    return _free(hx, self.inner, request, stream)
                once = partial(self.meter.reserve, call, charge, charge.attribution())
                reservation = threads.call(waiting.reserve, once)
            except AllowanceError as error:
                return refused(request, error)
            try:
                response = self.inner.handle_request(prepared(hx, request, call, reservation))
            except BaseException as error:
                threads.call(_unanswered, reservation, error)
                raise
            answer = _answer(reservation, call, response)
            return _through(hx, response, stream(response.stream, answer))

        def close(self) -> None:
            self.inner.close()

    return MeteredTransport


def _async_stream(hx: ModuleType) -> Any:
    class MeteredStream(hx.AsyncByteStream):  # type: ignore[name-defined,misc]
        def __init__(self, inner: Any, answer: Answering) -> None:
            self.inner = inner
            self.answer = answer

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for chunk in self.inner:
                    if shown := self.answer.feed(chunk):
                        yield shown
                if rest := self.answer.rest():
                    yield rest
            except GeneratorExit:
                threads.later(self.answer.closed)  # the collector may be closing us: no awaiting
                raise
            except BaseException as error:
                cancelled = not isinstance(error, Exception)
                await aend(self.answer.closed if cancelled else self.answer.failed)
                _explain(error, self.answer)
                raise
            await aend(self.answer.ended)

        async def aclose(self) -> None:
            self.answer.leave()
            try:
                await self.inner.aclose()
            finally:
                if not self.answer.over:
                    await aend(self.answer.closed)

        def __del__(self) -> None:
            if not self.answer.over:
                threads.later(_abandoned(self.answer, None))

    return MeteredStream


def _async_transport(hx: ModuleType) -> Any:
    refused, stream = _refused_response(hx), _async_stream(hx)

    class MeteredTransport(hx.AsyncBaseTransport):  # type: ignore[name-defined,misc]
        def __init__(self, inner: Any, meter: Meter) -> None:
            self.inner = inner
            self.meter = meter

        async def handle_async_request(self, request: Any) -> Any:
            charge = self.meter.charge()
            try:
                endpoint = None if charge.covered else self.meter.endpoint(request)
                content = await request.aread() if endpoint else b""
                call = self.meter.model_call(endpoint, request, content) if endpoint else None
                if call is None:
                    return await _afree(hx, self.inner, request, stream)
                reservation = await self._reserve(call, charge)
            except AllowanceError as error:
                return refused(request, error)
            try:
                sent = prepared(hx, request, call, reservation)
                response = await self.inner.handle_async_request(sent)
            except BaseException as error:
                await aend(partial(_unanswered, reservation, error))
                raise
            answer = _answer(reservation, call, response)
            return _through(hx, response, stream(response.stream, answer))

        async def _reserve(self, call: ModelCall, charge: Charge) -> Reservation:
            attribution = await charge.aattribution()
            return await waiting.areserve(partial(self.meter.reserving, call, charge, attribution))

        async def aclose(self) -> None:
            await self.inner.aclose()

    return MeteredTransport


@dataclass(frozen=True, slots=True)
class _abandoned:
    """A stream that was dropped without being closed: free the connection, then settle."""

    answer: Answering
    close: Any

    def __call__(self) -> None:
        self.answer.leave()
        try:
            if self.close is not None:
                self.close()
        finally:
            self.answer.closed("abandoned")


def _explain(error: BaseException, answer: Answering) -> None:
    """Raise what the reader is told of a stream that a switch has cut, not how that looks here."""
    if answer.refusal is not None and isinstance(error, Exception):
        raise answer.refusal from None


def _answer(reservation: Reservation, call: ModelCall, response: Any) -> Answer:
    answer = Answer(
        reservation,
        call.adapter,
        response.status_code,
        response.headers,
        hides_usage=call.body is not None,
        extensions=response.extensions,
    )
    tell(response, reservation, decoded=answer.hides_usage)
    return answer


def _free(hx: ModuleType, inner: Any, request: Any, stream: Any) -> Any:
    """Send what is no model call; an answer that was deferred is read as it passes."""
    found = retrieval(request.method, request.url.path)
    row = threads.call(retrievals.deferred, found) if found else None
    if found is None or row is None:
        return inner.handle_request(request)
    response = inner.handle_request(readable(request))
    return _through(hx, response, stream(response.stream, _fetched(row, found, response)))


async def _afree(hx: ModuleType, inner: Any, request: Any, stream: Any) -> Any:
    found = retrieval(request.method, request.url.path)
    row = await threads.acall(retrievals.deferred, found) if found else None
    if found is None or row is None:
        return await inner.handle_async_request(request)
    response = await inner.handle_async_request(readable(request))
    return _through(hx, response, stream(response.stream, _fetched(row, found, response)))


def _through(hx: ModuleType, response: Any, stream: Any) -> Any:
    """The response with its body passing through ``stream``, even if a mock has read it already."""
    if not response.is_closed:
        response.stream = stream
        return response
    return hx.Response(
        response.status_code,
        headers=response.headers,
        stream=stream,
        extensions=response.extensions,
    )


def _fetched(row: Row, found: Retrieval, response: Any) -> Fetched:
    return Fetched(row, found.adapter, response.status_code, response.headers)


def _unanswered(reservation: Reservation, error: BaseException) -> None:
    """No response: released if it surely never left, else the outcome is unknown (sdk 2f)."""
    if type(error).__name__ in NEVER_SENT:
        reservation.release()
    else:
        reservation.settle_estimate("uncertain")
