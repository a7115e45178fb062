"""The request as it is sent: with usage asked for, and in an encoding that we can read."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from token_allowance.meters import ModelCall

READABLE = "gzip, deflate"


def prepared(hx: ModuleType, request: Any, call: ModelCall) -> Any:
    """The request to send: with usage asked for, and in an encoding that we can read.

    A signed request is left alone: Bedrock's signature covers the body and every header.
    """
    if _is_signed(request):
        return request
    request.headers["accept-encoding"] = "identity" if call.stream else READABLE
    if call.body is None:
        return request
    kept = [
        (name, value)
        for name, value in request.headers.raw
        if name.lower() not in (b"content-length", b"transfer-encoding")
    ]
    return hx.Request(
        request.method,
        request.url,
        headers=kept,
        content=call.body,
        extensions=request.extensions,
    )


def readable(request: Any) -> Any:
    """A request for an answer that we can read."""
    if not _is_signed(request):
        request.headers["accept-encoding"] = READABLE
    return request


def _is_signed(request: Any) -> bool:
    authorization: str = request.headers.get("authorization", "")
    return authorization.startswith("AWS4-")
