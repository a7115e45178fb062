"""A lab whose store is a RedisStore, with a proxy before its server that makes faults."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tests import redis_servers, redis_stores
from tests.fault_proxy import Proxy
from tests.metering import Lab
from token_allowance import allowance, conf
from token_allowance.stores.redis import RedisStore

TIMEOUT_SECONDS = 0.6
SLACK_SECONDS = 0.5
"""What a busy machine may add."""
SCRIPTS = ("reserve", "settle", "extend", "expire", "gate", "write", "publish", "due")
WHO: dict[str, Any] = {"tenant": "acme", "user": "u1"}


class RedisLab(Lab):
    """``with RedisLab(server) as lab``: limits of three scopes, and ``lab.proxy`` in between."""

    def __init__(
        self, server: redis_servers.Redis, *, options: Any = None, **settings: Any
    ) -> None:
        self.server = server
        self.proxy = Proxy(server.port, *SCRIPTS)
        self.options = {
            "URL": self.proxy.url,
            "TIMEOUT_SECONDS": TIMEOUT_SECONDS,
            "PREFIX": redis_stores.options()["PREFIX"],
        }
        self.options |= options or {}
        backend = "token_allowance.stores.redis.RedisStore"
        super().__init__(STORE={"BACKEND": backend, "OPTIONS": self.options}, **settings)

    def __enter__(self) -> Self:
        super().__enter__()
        self.limit("cost", 50_000_000, tenant="*")
        self.limit("cost", 10_000_000, tenant="*", user="*")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        budgets = self.budgets
        try:
            self.proxy.heal()
            if kind is None:
                self.mend()
            super().__exit__(kind, error, tb)
        finally:
            budgets.wire.close()
            self.proxy.close()

    @property
    def budgets(self) -> RedisStore:
        store: RedisStore = conf.store()
        return store

    def mend(self) -> None:
        """The server is reached again, and what was kept for it is applied."""
        self.proxy.heal()
        breaker = self.budgets.wire.breaker
        breaker._until = 0.0  # as if its pause had passed
        self.budgets.drain()

    def call(self, sdk: str = "openai", **options: Any) -> Any:
        with allowance.charge_to(**WHO):
            return self.ask(sdk, **options)

    def held(self) -> list[tuple[int, int]]:
        """(used, reserved) of every budget, the three of dollars first."""
        found = allowance.remaining(**WHO)
        ordered = sorted(found, key=lambda b: (b.unit != "cost", b.amount))
        return [(budget.used, budget.reserved) for budget in ordered]

    def dump(self) -> dict[bytes, bytes]:
        """Everything that Redis has of this store but what comes and goes by itself."""
        found = self.server.ask("KEYS", f"{{{self.options['PREFIX']}}}*")
        passing = (b":lease", b":gate", b":hold")
        kept = [key for key in found if not key.endswith(passing)]
        return {key: self.server.ask("DUMP", key) for key in sorted(kept)}


def seconds(work: Callable[[], Any]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began
