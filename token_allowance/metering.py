"""meter(client): a client of the same type whose every model call is reserved and settled."""

from __future__ import annotations

from collections.abc import Hashable
from decimal import Decimal
from functools import lru_cache
from types import ModuleType
from typing import Any, TypeVar

from token_allowance import clients
from token_allowance.attribution import NAMES
from token_allowance.limits import checked_identifier
from token_allowance.meters import Meter
from token_allowance.money import to_micros
from token_allowance.transports import transports

C = TypeVar("C")


def meter(
    client: C,
    *,
    tenant: Any = None,
    user: Any = None,
    session: Any = None,
    feature: Any = None,
    provider: str = "",
    max_calls: int | None = None,
    max_cost: Decimal | int | str | None = None,
) -> C:
    """Return a metered copy of an OpenAI, Anthropic, Groq, Mistral, Ollama or httpx client.

    It shares the connections, keys and settings of the original, which stays as it is. The given
    attribution is used where the code around the call states none; ``max_calls`` and ``max_cost``
    (dollars) cap one request or job. ``provider`` names whose prices apply where neither host nor
    client class tells. Opens no connection. Raises TypeError for other clients.
    """
    stated = dict(zip(NAMES, (tenant, user, session, feature), strict=True))
    own = Meter(
        {n: checked_identifier(n, v) for n, v in stated.items() if v is not None},
        provider=provider,
        client_provider=clients.provider(client),
        max_calls=max_calls,
        max_cost_micros=None if max_cost is None else to_micros(max_cost),
    )

    def convert(http: Any) -> Any:
        return _metered_http(http, own)

    metered: C | None
    if clients.http_module(client) is not None:
        metered = convert(client)
    else:
        metered = clients.converted(client, convert)
    if metered is None:
        raise TypeError(
            "meter() wraps OpenAI, Anthropic, Groq, Mistral, Ollama and httpx clients, not "
            f"{type(client).__name__}; for anything else use allowance.call()"
        )
    return metered


def _metered_http(http: Any, own: Meter) -> Any:
    """A copy of an HTTP client that sends through metered transports to the same connections.

    It keeps the original alive, whose own clean-up would close them.
    """
    module = clients.http_module(http)
    assert module is not None
    kind: Any = type(http)
    copy: Any = object.__new__(_quiet(kind))
    copy.__dict__.update(http.__dict__)
    copy._transport = _metered(module, http, http._transport, own)
    copy._mounts = {
        pattern: None if inner is None else _metered(module, http, inner, own)
        for pattern, inner in http._mounts.items()
    }
    copy._token_allowance_original = http
    return copy


def _metered(module: ModuleType, http: Any, inner: Any, own: Meter) -> Any:
    kinds = transports(module)
    kind = kinds.asynchronous if hasattr(http, "aclose") else kinds.sync
    if isinstance(inner, kind):
        return kind(inner.inner, own.over(inner.meter))
    return kind(inner, own)


@lru_cache(maxsize=64)
def _quiet(kind: Hashable) -> type:
    """The same class without its finaliser: dropping the copy must not close what it shares."""
    assert isinstance(kind, type)
    return type(kind.__name__, (kind,), {"__del__": lambda self: None})
