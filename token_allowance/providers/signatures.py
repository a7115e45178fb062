"""Requests that somebody has signed: what the signature covers must be sent as it stands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# By how the Authorization header begins, whatever the case: AWS (SigV4 and SigV4a), Alibaba,
# Tencent, Huawei, HTTP signatures, and the HMAC schemes of gateways.
_SCHEMES: Final = (b"aws4-", b"acs3-", b"tc3-", b"sdk-hmac-", b"signature ", b"hmac ", b"hmac-")
# A digest covers the body, a signature whatever it names.
_HEADERS: Final = frozenset(
    (b"signature", b"signature-input", b"content-digest", b"digest", b"x-amz-content-sha256",
     b"content-md5", b"x-content-sha256")
)  # fmt: skip
_QUERY: Final = ("x-amz-signature=", "x-goog-signature=")


def is_signed(headers: Iterable[tuple[bytes, bytes]], query: str = "") -> bool:
    """Would changing this request break a signature or a digest? Headers and query as sent."""
    for raw_name, value in headers:
        name = raw_name.lower()
        if name in _HEADERS:
            return True
        if name == b"authorization" and value.lower().startswith(_SCHEMES):
            return True
    return bool(query) and any(name in query.lower() for name in _QUERY)
