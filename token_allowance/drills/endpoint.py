"""A model's endpoint for drills, on loopback: it costs nothing, and counts what reaches it."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from token_allowance.drills.plan import NAME

HOST = "127.0.0.1"
BODY_BYTES_MAX = 64 * 1024
ANSWER = json.dumps(
    {
        "id": NAME,
        "object": "chat.completion",
        "created": 0,
        "model": NAME,
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "ok"},
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
).encode()


class Endpoint:
    """``with Endpoint() as endpoint``: answers every POST at ``url`` until the block ends."""

    def __init__(self) -> None:
        self.calls = 0
        self._lock = threading.Lock()
        self._server = _Server((HOST, 0), _handler(self))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="token-allowance-drill"
        )

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_port}"

    def count(self) -> None:
        with self._lock:
            self.calls += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A probe that has gone is no error."""


def _handler(endpoint: Endpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            length = self.headers.get("content-length", "0")
            if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
                self.close_connection = True
                self.send_error(413)
                return
            self.rfile.read(int(length))
            endpoint.count()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(ANSWER)))
            self.end_headers()
            self.wfile.write(ANSWER)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the ledger has every call."""

    return Handler
