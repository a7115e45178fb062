"""How a webhook's receiver knows that a message is ours and new: Standard Webhooks.

Signed is ``id.timestamp.body`` with HMAC-SHA256, so that libraries of that name verify it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
PREFIX = "whsec_"


def headers(secret: str, id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of one attempt; ``timestamp`` in seconds since 1970. ValueError: no secret."""
    return {ID: id, TIMESTAMP: str(timestamp), SIGNATURE: signature(secret, id, timestamp, body)}


def signature(secret: str, id: str, timestamp: int, body: bytes) -> str:
    signed = b"%s.%d.%s" % (id.encode("ascii"), timestamp, body)
    made = hmac.new(_key(secret), signed, hashlib.sha256).digest()
    return "v1," + base64.b64encode(made).decode("ascii")


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not key:
        raise ValueError("the channel has no secret to sign with; give it a new one")
    return key
