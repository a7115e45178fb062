"""Connections to the server that holds the store's keys: a small pool, shared by all threads.

redis-py speaks the protocol. All keys are in one slot, so in a Cluster there is one node to talk
to: a redirection leads to it. Each connection knows the run id of its server: one that has been
restarted or promoted has another, and no script moves a counter there before it was recovered.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from token_allowance.exceptions import StoreUnavailable
from token_allowance.stores.redis import place
from token_allowance.stores.redis.breaker import Breaker
from token_allowance.stores.redis.names import Epoch
from token_allowance.stores.redis.scripts import Script

CONNECTIONS = 16
TIMEOUT_SECONDS = 1.0
RETRY_SECONDS = 2.0  # for answers that ask to be asked again: a slot moves, a server loads
REDIRECTIONS = 8
PAUSE_SECONDS = 0.02
# A slot moves, or a server loads; while a slot is on its way, new keys find no node at all.
SOON = (AskError, TryAgainError, ClusterDownError, MasterDownError, BusyLoadingError)

Answer = Any

Pack = Callable[[tuple[Any, ...]], bytes]


def packer() -> Pack | None:
    """What writes a command in C; None without hiredis: redis-py's own does the same, slower."""
    try:
        from hiredis import pack_command
    except ImportError:
        return None
    return cast(Pack, pack_command)


def fields(info: bytes) -> dict[str, str]:
    """The answer of INFO by name."""
    lines = info.decode().split("\r\n")
    return dict(line.split(":", 1) for line in lines if ":" in line)


class Link:
    """One connection, and the run id of the server it leads to.

    ReadOnlyError if that is a replica: it would answer reads, and not know the latest. In a Cluster
    it redirects instead.
    """

    def __init__(self, connection: Any, address: object) -> None:
        self.connection = connection  # redis-py's, which is not typed
        self.address = address
        self.pack = packer()
        connection.connect()
        try:
            info = fields(self.ask("INFO"))
            if info.get("role") == "slave" and info.get("cluster_enabled") != "1":
                raise ReadOnlyError("You can't write against a read only replica.")
        except BaseException:
            self.close()
            raise
        self.run = info["run_id"]

    def ask(self, *command: Any) -> Answer:
        connection = self.connection
        packed = [self.pack(command)] if self.pack else connection.pack_command(*command)
        connection.send_packed_command(packed, check_health=False)
        return connection.read_response()

    def close(self) -> None:
        self.connection.disconnect()


class Wire:
    """Runs scripts and commands. StoreUnavailable if the server cannot be asked, or refuses."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._most = int(options.get("MAX_CONNECTIONS", CONNECTIONS))
        self.timeout_seconds = float(options.get("TIMEOUT_SECONDS", TIMEOUT_SECONDS))
        more = place.secrets(options)
        self._pools = [place.pool(u, self.timeout_seconds, more) for u in place.urls(options)]
        self._nodes: list[tuple[str, int]] = []  # of a cluster, as redirections have named them
        self._at: int | tuple[str, int] = 0  # an index of _pools, or a node
        self.breaker = Breaker()
        self._begin()

    def _begin(self) -> None:
        self._idle: list[Link] = []
        self._free = threading.Semaphore(self._most)
        self._pid = os.getpid()

    def call(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Answer:
        """The answer of a script. An Epoch as the first argument says whom it is meant for."""
        return self._run((script, keys, arguments))

    def execute(self, *command: Any) -> Answer:
        return self._run(command)

    def close(self) -> None:
        """Close the connections nobody uses."""
        while self._idle:
            self._idle.pop().close()

    def _run(self, command: tuple[Any, ...]) -> Answer:
        if not self.breaker.allows():
            raise StoreUnavailable(
                "Redis has failed several times and is not asked for a moment. "
                "Nothing was sent to a model."
            )
        if self._pid != os.getpid():
            self._begin()
        if not self._free.acquire(timeout=self.timeout_seconds + RETRY_SECONDS):
            raise StoreUnavailable("All connections of the budget store to Redis are busy.")
        try:
            answer = self._persist(command)
        except (RedisError, OSError) as error:
            if not isinstance(error, ResponseError):
                self.breaker.failed()
            raise StoreUnavailable(
                f"The budget store's Redis failed: {type(error).__name__}: {error}. "
                "Nothing was sent to a model."
            ) from error
        finally:
            self._free.release()
        self.breaker.succeeded()
        return answer

    def _persist(self, command: tuple[Any, ...]) -> Answer:
        """Ask until there is an answer: elsewhere if told so, again if that can help.

        An error has ``sent`` if some server may have run the command all the same.
        """
        deadline = time.monotonic() + RETRY_SECONDS
        tried, sent = 0, False
        while True:
            kept = bool(self._idle)
            try:
                return self._once(command)
            except MovedError as error:
                tried += 1
                if tried > REDIRECTIONS:
                    raise
                self._move(error.host, error.port)
            except SOON:
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_SECONDS)
            except TimeoutError as error:
                self._next_place()
                error.sent = sent or getattr(error, "sent", False)  # type: ignore[attr-defined]
                raise
            except (ConnectionError, OSError, ReadOnlyError) as error:
                # A kept connection can have died long ago; and every script may be repeated.
                tried += not kept
                sent = sent or getattr(error, "sent", False)
                if tried and not self._next_place(tried):
                    error.sent = sent  # type: ignore[union-attr]
                    raise
                self.close()

    def _once(self, command: tuple[Any, ...]) -> Answer:
        try:
            link = self._idle.pop()
        except IndexError:
            link = self.link()
        try:
            answer = self._ask(link, command)
        except ResponseError:
            self._idle.append(link)
            raise
        except BaseException as error:
            link.close()
            error.sent = True  # type: ignore[attr-defined]
            raise
        if link.address == self._at:
            self._idle.append(link)
        else:
            link.close()
        return answer

    def _ask(self, link: Link, command: tuple[Any, ...]) -> Answer:
        if not isinstance(command[0], Script):
            return link.ask(*command)
        script, keys, arguments = command
        if arguments and isinstance(arguments[0], Epoch):
            arguments = [f"{arguments[0]}:{link.run}", *arguments[1:]]
        try:
            return link.ask("EVALSHA", script.sha, len(keys), *keys, *arguments)
        except NoScriptError:
            return link.ask("EVAL", script.source, len(keys), *keys, *arguments)

    def link(self) -> Link:
        """A connection of one's own to where the keys are. redis-py's errors pass."""
        at = self._at
        pool = self._pools[at if isinstance(at, int) else 0]
        settings = dict(pool.connection_kwargs)
        if not isinstance(at, int):
            settings["host"], settings["port"] = at
        return Link(pool.connection_class(**settings), at)

    def _next_place(self, tried: int = 0) -> bool:
        """Turn to another address after a failure; False if every one has been tried."""
        self.close()
        places: list[int | tuple[str, int]] = [*range(len(self._pools)), *self._nodes]
        here = places.index(self._at) if self._at in places else -1
        self._at = places[(here + 1) % len(places)]
        return tried < len(places)

    def _move(self, host: str, port: int) -> None:
        self.close()
        if not host:  # the node does not know its own name: it is the one we asked
            host = str(self._pools[0].connection_kwargs.get("host", "localhost"))
        self._at = (host, port)
        if self._at not in self._nodes:
            self._nodes.append(self._at)
