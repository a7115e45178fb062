"""The request as it is sent: with usage asked for, and down the ladder if its budgets say so."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

from token_allowance.meters import ModelCall
from token_allowance.plans import Attempt
from token_allowance.providers.signatures import is_signed
from token_allowance.reservations import Reservation

READABLE = "gzip, deflate"
MODEL_HEADER = "x-token-allowance-model"
DEGRADED_HEADER = "x-token-allowance-degraded"


def prepared(hx: ModuleType, request: Any, call: ModelCall, reservation: Reservation) -> Any:
    """The request to send for what was reserved, in an encoding that we can read.

    A signed request is left alone: Bedrock's signature covers the body and every header.
    """
    if call.signed:
        return request
    request.headers["accept-encoding"] = "identity" if call.stream else READABLE
    body, url, served = call.body, request.url, reservation.plan.attempt
    if served.asked_model or served.max_output_tokens != call.attempt.max_output_tokens:
        body, url = _lowered(request, call, served)
    if body is None:
        return request
    kept = [
        (name, value)
        for name, value in request.headers.raw
        if name.lower() not in (b"content-length", b"transfer-encoding")
    ]
    return hx.Request(
        request.method,
        url,
        headers=kept,
        content=body,
        extensions=request.extensions,
    )


def readable(request: Any) -> Any:
    """A request for an answer that we can read."""
    if not is_signed(request.headers.raw):
        request.headers["accept-encoding"] = READABLE
    return request


def tell(response: Any, reservation: Reservation, *, decoded: bool) -> None:
    """Tell the caller in the answer's headers how it was made: cheaper than asked for, or decoded
    on its way."""
    plan = reservation.plan
    if decoded:
        response.headers.pop("content-encoding", None)
    if "degraded" in plan.flags:
        response.headers[MODEL_HEADER] = plan.attempt.model
        response.headers[DEGRADED_HEADER] = "true"


def _lowered(request: Any, call: ModelCall, served: Attempt) -> tuple[bytes, Any]:
    """Body and address that ask for no more than what is reserved."""
    adapter, model = call.adapter, served.model if served.asked_model else ""
    shorter = served.max_output_tokens != call.attempt.max_output_tokens
    body = adapter.rewrite(
        json.loads(request.content), model, served.max_output_tokens if shorter else None
    )
    body = adapter.ask_usage(body) or body
    path, mark, query = request.url.raw_path.decode("ascii").partition("?")
    address = f"{adapter.address(path, model)}{mark}{query}".encode("ascii")
    return json.dumps(body).encode(), request.url.copy_with(raw_path=address)
