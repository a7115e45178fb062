"""The little of HTTP/1.1 that a model provider on loopback needs."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 64 * 1024 * 1024
LAST_CHUNK = b"0\r\n\r\n"
GZIP_WINDOW = 31


class Head(NamedTuple):
    """`headers` have lower-case names; `path` has no query."""

    method: str
    path: str
    headers: dict[str, str]
    body_bytes: int


class Malformed(Exception):
    """`status` to answer before the connection is closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def parse_head(raw: bytes) -> Head:
    """Raises Malformed. `raw` ends before the empty line."""
    lines = raw.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise Malformed(400, "malformed request line")
    pairs = (line.partition(":") for line in lines[1:])
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if "transfer-encoding" in headers:
        raise Malformed(411, "send a content-length")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise Malformed(400, "malformed content-length")
    if int(length) > BODY_BYTES_MAX:
        raise Malformed(413, "request body too large")
    return Head(words[0], words[1].partition("?")[0], headers, int(length))


def head(status: int, headers: Mapping[str, str]) -> bytes:
    known = status in HTTPStatus._value2member_map_
    reason = HTTPStatus(status).phrase if known else "Unknown"
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {headers[name]}" for name in headers)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def plain(status: int, headers: Mapping[str, str], body: bytes) -> bytes:
    return head(status, {**headers, "content-length": str(len(body))}) + body


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; nothing for no data, which would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


class Encoder:
    """Content encoding of one body, part by part, each part readable as soon as it arrives."""

    def __init__(self, encoding: str | None) -> None:
        self._gzip = zlib.compressobj(wbits=GZIP_WINDOW) if encoding == "gzip" else None

    def part(self, data: bytes) -> bytes:
        if self._gzip is None:
            return data
        return self._gzip.compress(data) + self._gzip.flush(zlib.Z_SYNC_FLUSH)

    def end(self) -> bytes:
        return b"" if self._gzip is None else self._gzip.flush()
