"""A TCP proxy before Redis that loses, delays and invents answers, one command at a time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Self

from token_allowance.stores.redis.scripts import script

STEP_SECONDS = 0.02  # how soon a thread notices that the proxy ends
HELD_MOST_SECONDS = 30.0


@dataclass(frozen=True)
class Fault:
    """What becomes of a command: does the server get it, and when; what does the client get."""

    executed: bool = True
    answered: bool = True
    cut: bool = False
    """Close the connection instead of an answer."""
    error: str = ""
    """Answer this, as an error of the server, and do not execute it."""
    delay_seconds: float = 0.0
    until: threading.Event | None = None
    """Keep the command, also if its client has gone meanwhile, until this is set."""


NONE = Fault()
SWALLOW = Fault(answered=False)
"""Executed; the answer is lost, and the connection stays open."""
CUT_AFTER = Fault(answered=False, cut=True)
"""Executed; the connection is closed instead of an answer."""
CUT_BEFORE = Fault(executed=False, answered=False, cut=True)
BLACK_HOLE = Fault(executed=False, answered=False)


class Proxy:
    """Listens on a port of its own before ``port``; ``seen`` names each command that came.

    A command is named by its first word in small letters, a script by the script's name.
    """

    def __init__(self, port: int, *scripts: str) -> None:
        self._server = port
        self._names = {script(name).sha: name for name in scripts}
        self._names |= {script(name).source: name for name in scripts}
        self.seen: list[str] = []
        self.accepted = 0
        self._faults: list[tuple[str, Fault, int]] = []
        self._always: Fault = NONE
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self.port = 0
        self.listen()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def fault(self, fault: Fault, name: str = "", times: int = 1) -> None:
        """Let this happen to the next commands of that name, or to the next of any name."""
        with self._lock:
            self._faults.append((name, fault, times))

    def always(self, fault: Fault) -> None:
        """Let this happen to every command, from now on."""
        self._always = fault

    def heal(self) -> None:
        with self._lock:
            self._faults.clear()
        self._always = NONE
        self.listen()

    def refuse(self) -> None:
        """Nothing listens here any more; the connections there are stay."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self.port = self._listener.getsockname()[1]
            self._start(self._accept, self._listener)

    def cut(self) -> None:
        """Close every connection there is."""
        with self._lock:
            open_now = list(self._sockets)
        for connection in open_now:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def down(self) -> None:
        self.refuse()
        self.cut()

    def count(self, name: str) -> int:
        return self.seen.count(name)

    def close(self) -> None:
        self._ends.set()
        self.down()
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self, work: Callable[[socket.socket], None], given: socket.socket) -> None:
        thread = threading.Thread(target=work, args=(given,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self.accepted += 1
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError):
            server = socket.create_connection(("127.0.0.1", self._server), 10)
            with server, client.makefile("rb") as asked, server.makefile("rb") as answers:
                with self._lock:
                    self._sockets |= {client, server}
                try:
                    while self._pass_on(client, server, asked, answers):
                        pass
                finally:
                    with self._lock:
                        self._sockets -= {client, server}

    def _pass_on(
        self, client: socket.socket, server: socket.socket, asked: BinaryIO, answers: BinaryIO
    ) -> bool:
        command = frame(asked)
        name = self._name(command)
        fault = self._fault_of(name)
        self.seen.append(name)
        self._wait(fault)
        answer = f"-{fault.error}\r\n".encode()
        if fault.executed and not fault.error:
            server.sendall(command)
            answer = frame(answers)
        if fault.answered:
            client.sendall(answer)
        return not fault.cut

    def _wait(self, fault: Fault) -> None:
        deadline = time.monotonic() + HELD_MOST_SECONDS
        if fault.delay_seconds:
            self._ends.wait(fault.delay_seconds)
        while fault.until is not None and not fault.until.wait(STEP_SECONDS):
            if self._ends.is_set() or time.monotonic() > deadline:
                raise EOFError

    def _fault_of(self, name: str) -> Fault:
        with self._lock:
            for i, (wanted, fault, times) in enumerate(self._faults):
                if wanted in ("", name):
                    self._faults[i] = (wanted, fault, times - 1)
                    if times <= 1:
                        del self._faults[i]
                    return fault
        return self._always

    def _name(self, command: bytes) -> str:
        parts = command.split(b"\r\n", 5)
        word = parts[2].decode().lower()
        if word in ("eval", "evalsha"):
            length = int(parts[3][1:])
            start = len(command) - len(parts[5]) - len(parts[4]) - 2
            return self._names.get(command[start : start + length], word)
        return word


def frame(stream: BinaryIO) -> bytes:
    """One command or answer of the Redis protocol (RESP2), whole. EOFError at the end."""
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise EOFError
    kind, size = line[:1], line[1:-2]
    if kind == b"$" and size != b"-1":
        return line + exactly(stream, int(size) + 2)
    if kind == b"*":
        return line + b"".join(frame(stream) for _ in range(int(size)))
    return line


def exactly(stream: BinaryIO, size: int) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise EOFError
    return found
