"""One client connection: requests in, answers out, keep-alive between them."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

from project.provider import http
from project.provider.event import compact


class Site(Protocol):
    """Whoever answers the requests of a connection."""

    connections: set[Connection]

    def receive(self, connection: Connection, head: http.Head, body: bytes) -> None:
        """Answer with `send` now, or with `start` later."""


class Connection(asyncio.Protocol):
    """Serves one request at a time; what the client sends meanwhile waits in the buffer."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head: http.Head | None = None
        self._busy = False
        self._last = False
        self._task: asyncio.Task[None] | None = None
        self._on_lost: Callable[[str], None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.site.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.site.connections.discard(self)
        self._writable.set()
        if self._on_lost is not None:
            self._on_lost("disconnected")
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._read()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def drained(self) -> None:
        """Returns when the client keeps up with what was written."""
        await self._writable.wait()

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def send(self, data: bytes) -> None:
        """Write the rest of an answer; the next request may follow."""
        self.write(data)
        if self._task is None:
            self._finish()

    def start(self, answer: Coroutine[Any, Any, None], on_lost: Callable[[str], None]) -> None:
        """Answer in a task. `on_lost` hears an outcome if the answer cannot be completed."""
        self._on_lost = on_lost
        self._task = asyncio.get_running_loop().create_task(answer)
        self._task.add_done_callback(self._done)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def reset(self) -> None:
        """Close with a TCP reset instead of an orderly end."""
        if self.transport is not None:
            linger = struct.pack("ii", 1, 0)
            connected = self.transport.get_extra_info("socket")
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.transport.abort()

    def _read(self) -> None:
        while not self._busy and self.transport is not None and not self.transport.is_closing():
            try:
                request = self._take()
            except http.Malformed as malformed:
                body = compact({"error": {"message": str(malformed)}})
                self.write(http.plain(malformed.status, {"connection": "close"}, body))
                self.close()
                return
            if request is None:
                return
            self._busy = True
            self.site.receive(self, *request)

    def _take(self) -> tuple[http.Head, bytes] | None:
        """The next whole request in the buffer."""
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > http.HEAD_BYTES_MAX:
                    raise http.Malformed(431, "request head too large")
                return None
            self._head = http.parse_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
        if len(self._buffer) < self._head.body_bytes:
            return None
        head, self._head = self._head, None
        body = bytes(self._buffer[: head.body_bytes])
        del self._buffer[: head.body_bytes]
        if head.headers.get("connection", "").lower() == "close":
            self._last = True
        return head, body

    def _finish(self) -> None:
        self._busy = False
        if self._last:
            self.close()

    def _done(self, task: asyncio.Task[None]) -> None:
        on_lost, self._on_lost, self._task = self._on_lost, None, None
        if task.cancelled():
            return
        problem = task.exception()
        if problem is None:
            self._finish()
            self._read()
            return
        if on_lost is not None:
            on_lost("broken")
        self.abort()
        context = {"message": "the simulated provider failed", "exception": problem}
        asyncio.get_running_loop().call_exception_handler(context)
