"""A webhook's receiver on loopback: it keeps what it was sent, and answers as it was told."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.capability import lacking

NAME = "hooks.example"
Answer = tuple[int, dict[str, str], bytes]
OK: Answer = (200, {}, b"ok")


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """``answers`` are used up one by one, then it is 200. ``certificate``: a file for TLS.

    Nothing is answered before ``may_answer`` is set.
    """

    answers: list[Answer] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    certificate: Path | None = None
    port: int = 0
    may_answer: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_answer.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?token=very-secret"

    @contextmanager
    def serving(self) -> Iterator[Receiver]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.received.append(Received(self.path, headers, self.rfile.read(length)))
                receiver.may_answer.wait(60)
                status, given, body = receiver.answers.pop(0) if receiver.answers else OK
                self.send_response(status)
                for name, value in given.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(OSError):  # nobody reads it
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Nothing on standard error."""

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                """A client that hangs up is none of ours."""

        with Server(("127.0.0.1", 0), Handler) as server:
            if self.certificate:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(self.certificate)
                server.socket = context.wrap_socket(server.socket, server_side=True)
            self.port = server.server_address[1]
            thread = threading.Thread(target=server.serve_forever, args=(0.02,))
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()


@contextmanager
def talking(say: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port whose one visitor is told whatever ``say`` sends; it may hang up meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                visitor, _ = listener.accept()
                with visitor:
                    say(visitor)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def drip(text: bytes, every_seconds: float) -> Callable[[socket.socket], None]:
    """Sends a byte now and then, each well before a timeout, and never an end."""

    def say(visitor: socket.socket) -> None:
        for byte in text:
            visitor.sendall(bytes([byte]))
            time.sleep(every_seconds)

    return say


def certificate(folder: Path, name: str = NAME) -> Path:
    """A certificate of its own with its key, for this name."""
    program = shutil.which("openssl")
    if program is None:
        lacking("no openssl to make a certificate with")
    made = folder / f"{name}.pem"
    subprocess.run(
        [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}",
         "-keyout", str(made), "-out", str(folder / "certificate")],
        check=True, capture_output=True,
    )  # fmt: skip
    made.write_text(made.read_text() + (folder / "certificate").read_text())
    return made
