"""Budgets in Redis, Valkey or a Redis Cluster, with the ledger in the host's database behind it."""

from __future__ import annotations

try:
    import redis as _redis  # noqa: F401
except ImportError as error:
    from django.core.exceptions import ImproperlyConfigured

    raise ImproperlyConfigured(
        "RedisStore needs the package redis: pip install 'token-allowance[redis]'."
    ) from error

from token_allowance.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
