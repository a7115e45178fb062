"""One HTTP POST to a checked address: no redirects, no proxies, no answer but its status.

``http.client`` with a connect of its own, so that what was checked is what is connected to, while
certificate and Host are those of the name.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from token_allowance.channels import addresses
from token_allowance.channels.addresses import Address, Place

AGENT = "token-allowance"
TIMEOUT_SECONDS = 10.0  # for all of it, however slowly the other side drips


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    allowed: Iterable[str] = (),
    seconds: float = TIMEOUT_SECONDS,
) -> int:
    """The status of the answer; its body is not read.

    Raises addresses.Refused before anything is sent, OSError or HTTPException if there is no
    answer.
    """
    known = tuple(allowed)
    place = addresses.place(url, known)
    connection = Pinned(place, addresses.addresses(place, known), time.monotonic() + seconds)
    named = {"Host": place.netloc, "Content-Type": "application/json", "User-Agent": AGENT}
    with _cut_at(connection, seconds):
        try:
            connection.request("POST", place.target, body, {**named, **headers})
            return connection.getresponse().status
        finally:
            connection.close()


class Pinned(http.client.HTTPConnection):
    """A connection to one of these addresses, whatever its name may mean by now."""

    def __init__(self, place: Place, numbers: list[Address], deadline: float) -> None:
        super().__init__(place.host, place.port)
        self.place, self.numbers, self.deadline = place, numbers, deadline
        self.cut = False

    def connect(self) -> None:
        self.sock = self._connected()
        if self.place.scheme != "https":
            return
        self.sock = tls_context().wrap_socket(
            self.sock, server_hostname=self.place.host, do_handshake_on_connect=False
        )
        self.sock.do_handshake()

    def _connected(self) -> socket.socket:
        failed: OSError = TimeoutError("timed out")
        for address in self.numbers:
            left = self.deadline - time.monotonic()
            if left <= 0 or self.cut:
                break
            family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
            made = socket.socket(family, socket.SOCK_STREAM)
            made.settimeout(left)
            try:
                made.connect((str(address), self.place.port))
            except OSError as error:
                made.close()
                failed = error
                continue
            return made
        raise failed


def tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()


@contextmanager
def _cut_at(connection: Pinned, seconds: float) -> Iterator[None]:
    """End the connection after this time: a timeout of a socket only bounds each of its reads."""

    def cut() -> None:
        connection.cut = True
        if connection.sock is not None:
            with suppress(OSError):  # not SSLSocket's own, which would take TLS from a reader
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as error:
        if connection.cut:
            raise TimeoutError("timed out") from error
        raise
    finally:
        timer.cancel()
