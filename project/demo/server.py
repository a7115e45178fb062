"""Django's own WSGI server on loopback, a thread per request, static files included."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import TCPServer

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler

HOST = "127.0.0.1"
PORT = 8000


class Handler(WSGIRequestHandler):
    """Says nothing about each request: the terminal is for the user of the demo."""

    def log_message(self, format: str, *args: object) -> None:
        """Faults are logged by Django itself, with their trace."""


class Server(ThreadedWSGIServer):
    """Raises OSError if the port is taken. 0 is any free one."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__((HOST, port), Handler)
        self.set_app(StaticFilesHandler(WSGIHandler()))

    def server_bind(self) -> None:
        """Without the base class's look-up of the host's full name, which may take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]
        self.setup_environ()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}"


def opened(port: int | None) -> Server:
    """A server at this port; without one at 8000, or at any free port if that is taken."""
    if port is not None:
        return Server(port)
    try:
        return Server(PORT)
    except OSError:
        return Server(0)


@contextmanager
def running() -> Iterator[Server]:
    """Serve at a free port from a thread."""
    with opened(0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="demo-server")
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
