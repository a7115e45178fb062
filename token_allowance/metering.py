"""meter(client): a client of the same type whose every model call is reserved and settled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from decimal import Decimal
from functools import lru_cache
from types import ModuleType
from typing import Any, TypeVar

from token_allowance.attribution import NAMES
from token_allowance.limits import checked_identifier
from token_allowance.meters import Meter
from token_allowance.money import to_micros
from token_allowance.transports import transports

C = TypeVar("C")
HTTP_MODULES = ("httpx2", "httpx")


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
    """Return a metered copy of an OpenAI or Anthropic client, or of an httpx client.

    It shares the connections, keys and settings of the original, which stays as it is. The given
    attribution is used where the code around the call states none; ``max_calls`` and ``max_cost``
    (dollars) cap one request or job. ``provider`` names whose prices apply where neither host nor
    client class tells. Opens no connection. Raises TypeError for other clients.
    """
    stated = dict(zip(NAMES, (tenant, user, session, feature), strict=True))
    own = Meter(
        {n: checked_identifier(n, v) for n, v in stated.items() if v is not None},
        provider=provider,
        client_provider=_package(client) if _package(client) in ("openai", "anthropic") else "",
        max_calls=max_calls,
        max_cost_micros=None if max_cost is None else to_micros(max_cost),
    )
    sdk: Any = client
    if _http_module(client) is not None:
        metered: C = _metered_http(client, own)
        return metered
    http = getattr(sdk, "_client", None)
    copy: Callable[..., C] | None = getattr(sdk, "with_options", None)
    if http is None or copy is None or _http_module(http) is None:
        raise TypeError(
            f"meter() wraps OpenAI, Anthropic and httpx clients, not {type(client).__name__}; "
            "for anything else use allowance.call()"
        )
    return copy(http_client=_metered_http(http, own))


def _metered_http(http: Any, own: Meter) -> Any:
    """A copy of an HTTP client that sends through metered transports to the same connections.

    It keeps the original alive, whose own clean-up would close them.
    """
    module = _http_module(http)
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


def _http_module(client: object) -> ModuleType | None:
    """``httpx`` or ``httpx2`` if the object is a client of one of them."""
    for kind in type(client).__mro__:
        root = kind.__module__.partition(".")[0]
        if root in HTTP_MODULES and kind.__name__ in ("Client", "AsyncClient"):
            return sys.modules[root]
    return None


def _package(client: object) -> str:
    return type(client).__module__.partition(".")[0]
