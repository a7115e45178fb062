"""What is wrong with how a Redis server is set up, for budgets."""

from __future__ import annotations

from token_allowance.exceptions import StoreUnavailable
from token_allowance.stores.redis.wire import Wire, fields

SAFE = ("noeviction",)
OLDEST = (6, 2)


def problems(wire: Wire) -> list[str]:
    """One sentence for each."""
    try:
        info = facts(wire)
    except StoreUnavailable as error:
        return [str(error)]
    found = []
    version = tuple(int(part) for part in info["redis_version"].split(".")[:2])
    if version < OLDEST and "valkey_version" not in info:
        found.append(f"Redis {info['redis_version']} is too old: RedisStore needs 6.2 or newer.")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy not in SAFE:
        found.append(
            f"Redis may evict budgets: maxmemory-policy is {policy}. Set it to noeviction: an "
            "evicted budget is counted anew from the ledger, which is slow."
        )
    if info.get("aof_enabled") == "0":
        found.append(
            "Redis keeps no append-only file: what it has admitted and the ledger has not taken "
            "over yet is lost when it ends. Set appendonly yes."
        )
    return found


def facts(wire: Wire) -> dict[str, str]:
    return fields(wire.execute("INFO"))
