"""Where the server is: from a URL, from several, or from an alias of django-redis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.retry import Retry

DEFAULT_URL = "redis://127.0.0.1:6379/0"


def urls(options: Mapping[str, Any]) -> list[str]:
    """The addresses to try, the first first. ImproperlyConfigured if the alias has none."""
    if alias := options.get("CACHE"):
        return _of_cache(alias)
    given = options.get("URL", DEFAULT_URL)
    return [given] if isinstance(given, str) else list(given)


def secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    """What a django-redis alias says beside its addresses: password and connection arguments."""
    alias = options.get("CACHE")
    if not alias:
        return {}
    given = settings.CACHES[alias].get("OPTIONS", {})
    found = dict(given.get("CONNECTION_POOL_KWARGS", {}))
    found.pop("max_connections", None)
    for option in ("PASSWORD", "USERNAME"):
        if given.get(option):
            found[option.lower()] = given[option]
    return found


def pool(url: str, timeout_seconds: float, more: Mapping[str, Any]) -> ConnectionPool:
    """A factory of connections to this address: short timeouts, no retries of its own."""
    return ConnectionPool.from_url(
        url,
        protocol=2,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=timeout_seconds,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
        retry_on_timeout=False,
        **more,
    )


def _of_cache(alias: str) -> list[str]:
    caches = getattr(settings, "CACHES", {})
    location = caches.get(alias, {}).get("LOCATION")
    if not location:
        raise ImproperlyConfigured(
            f"STORE OPTIONS name the cache {alias!r}, and CACHES has no LOCATION for it."
        )
    return location.split(",") if isinstance(location, str) else list(location)
