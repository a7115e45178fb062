"""The policy version in Redis: confirmed by the database every two seconds (protocol A)."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from token_allowance.exceptions import StoreUnavailable
from token_allowance.stores import version
from token_allowance.stores.base import Request
from token_allowance.stores.connections import run
from token_allowance.stores.redis.asking import Question
from token_allowance.stores.redis.names import Names
from token_allowance.stores.redis.scripts import script

if TYPE_CHECKING:
    from token_allowance.stores.redis.store import RedisStore

logger = logging.getLogger("token_allowance")
UNKNOWN: Final = -2  # the database did not say
LEASE_MILLISECONDS = 2000
HOLD_MILLISECONDS = 5000


def confirm(store: RedisStore) -> int:
    """The version that the database has now, told to Redis; UNKNOWN if it cannot be asked.

    A database that is behind what was published from it has been turned back: everything is
    counted anew from it.
    """
    seconds, micros = store.wire.execute("TIME")
    began = int(seconds) * 1000 + int(micros) // 1000
    try:
        known = run(store.alias, version.read)
    except StoreUnavailable:
        logger.warning("token_allowance: the database is down; limits are those last known")
        return UNKNOWN
    answer = _publish(store, known, began)
    if answer[0] == "older" and run(store.alias, version.read) < int(answer[1]):
        store.turned_back()
    return known


def unconfirmed(request: Request, answer: list[Any]) -> Request:
    """The same request under the policy last known, and a flag that says so.

    StoreUnavailable if that policy is known to be out of date.
    """
    if answer[0] == "older" and (answer[1] == b"" or int(answer[1]) != request.version):
        raise StoreUnavailable("The limits have changed, and their database is down.")
    flags = sorted({*request.row["flags"], "policy_unconfirmed"})
    request.row["flags"] = flags
    return replace(request, row=request.row)


def hold(store: RedisStore) -> None:
    """A policy write is about to commit: until then every reserve asks the database itself."""
    store.wire.execute("SET", store.asking.names.hold, 1, "PX", HOLD_MILLISECONDS)


def publish_written(store: RedisStore) -> None:
    """A policy write has been committed."""
    publish(store, run(store.alias, version.read))


def is_news(request: Request, answer: list[Any]) -> bool:
    """Does a request know a newer version than the one that was published?

    If it has read it since it began, that is new enough, though there may be one newer still that
    nobody has told of: otherwise edits that follow each other fast starve it (protocol 5).
    """
    return answer[1] == b"" or int(answer[1]) < request.version


def publish(store: RedisStore, number: int) -> None:
    """Raise the published version; how long it may be relied on stays as it is."""
    _publish(store, number, "")


def _publish(store: RedisStore, number: int, began: int | str) -> list[Any]:
    return store.asking.ask(_published, number, began)


def _published(names: Names, number: int, began: int | str) -> Question:
    keys = [names.marker, names.version, names.lease, names.hold]
    return script("publish"), keys, [names.epoch, number, began, LEASE_MILLISECONDS]
