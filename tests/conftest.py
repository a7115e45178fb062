"""Fixtures that many tests share."""

from __future__ import annotations

from tests.alerting import clock
from tests.browser import browser, page, page_errors
from tests.redis_servers import cluster, durable_redis, redis_server, valkey
from tests.stores import database, databases, store
from tests.waiters import limit, tries

__all__ = [
    "browser",
    "clock",
    "cluster",
    "database",
    "databases",
    "durable_redis",
    "limit",
    "page",
    "page_errors",
    "redis_server",
    "store",
    "tries",
    "valkey",
]
