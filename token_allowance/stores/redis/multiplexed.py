"""One connection that all tasks of an event loop share: a pool costs them several times as much.

Commands that are asked in one turn of the loop are sent together, and answers come in order.
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections import deque
from typing import Any

import hiredis
from redis.exceptions import ConnectionError, RedisError, TimeoutError

from token_allowance.stores.redis.wire import Link

CHUNK = 65_536


class Multiplexed:
    """Asked by ``ask``; an error answer is returned as a hiredis.ReplyError, not raised.

    If the server is silent for ``timeout_seconds``, or the connection ends, everything that was
    asked fails with redis-py's TimeoutError or ConnectionError. Made of a connection that redis-py
    has opened, on the loop that it is for.
    """

    def __init__(self, link: Link, timeout_seconds: float) -> None:
        self.run = link.run
        self.closed = False
        self._link = link
        self._socket: socket.socket = link.connection._sock
        self._loop = asyncio.get_running_loop()
        self._timeout_seconds = timeout_seconds
        self._reader = hiredis.Reader()
        self._asked: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unsent = bytearray()
        self._sending = False
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._receive)
        self._watching = self._loop.call_later(timeout_seconds / 2, self._watch)
        weakref.finalize(self._loop, link.close)

    def ask(self, command: tuple[Any, ...]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.closed:
            future.set_exception(ConnectionError("The connection to Redis has ended."))
            return future
        if not self._sending:
            self._sending = True
            self._loop.call_soon(self._send)
        self._unsent += hiredis.pack_command(command)
        self._asked.append((future, self._loop.time()))
        return future

    def _send(self) -> None:
        if self.closed:
            return
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(ConnectionError(f"Writing to Redis failed: {error}"))
            return
        if self._unsent:
            self._loop.add_writer(self._socket, self._send)
        else:
            self._loop.remove_writer(self._socket)
            self._sending = False

    def _receive(self) -> None:
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(ConnectionError(f"Reading from Redis failed: {error}"))
            return
        if not data:
            self._fail(ConnectionError("Redis has ended the connection."))
            return
        self._reader.feed(data)
        while (answer := self._reader.gets()) is not False:
            future, _ = self._asked.popleft()
            if not future.done():
                future.set_result(answer)

    def _watch(self) -> None:
        if self._asked and self._loop.time() - self._asked[0][1] > self._timeout_seconds:
            self._fail(TimeoutError("Timeout reading from Redis"))
        if not self.closed:
            self._watching = self._loop.call_later(self._timeout_seconds / 2, self._watch)

    def _fail(self, error: RedisError) -> None:
        self.closed = True
        self._watching.cancel()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._link.close()
        asked, self._asked = self._asked, deque()
        for future, _ in asked:
            if not future.done():
                future.set_exception(error)
