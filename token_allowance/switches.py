"""Kill switches: engage and release them, in force at the next reserve of every process."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django.db import DEFAULT_DB_ALIAS, IntegrityError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from token_allowance import announcements, conf, threads
from token_allowance.exceptions import StoreUnavailable
from token_allowance.limits import checked_identifier
from token_allowance.stores.connections import run
from token_allowance.stores.ledger import transaction

NAMES = ("tenant", "user", "feature", "model")
GLOBAL = "global"
WHERE = 'tenant = %s AND "user" = %s AND feature = %s AND model = %s AND released_at IS NULL'


@dataclass(frozen=True, slots=True)
class Target:
    """What a switch stops: calls with all of these values; with none of them, every call."""

    tenant: str = ""
    user: str = ""
    feature: str = ""
    model: str = ""

    @property
    def values(self) -> list[str]:
        return [getattr(self, name) for name in NAMES]


def target(text: str | None, everything: bool, named: dict[str, Any]) -> Target:
    """The target of ``"dimension:value"``, ``"global"`` or keywords; ValueError if unclear."""
    values = {name: value for name, value in named.items() if value is not None}
    if text is not None and text != GLOBAL:
        name, colon, value = text.partition(":")
        if not colon or name not in NAMES:
            raise ValueError(f"{text!r} names no target; write 'feature:agent' or 'global'")
        values[name] = value
    everything = everything or text == GLOBAL
    if everything == bool(values):
        raise ValueError("name what to stop (tenant=, user=, feature=, model=) or everything=True")
    return Target(**{name: checked_identifier(name, value) for name, value in values.items()})


def engage(
    text: str | None = None,
    *,
    reason: str,
    by: Any,
    minutes: float | None = None,
    everything: bool = False,
    tenant: Any = None,
    user: Any = None,
    feature: Any = None,
    model: Any = None,
) -> None:
    """Stop matching calls. When this returns, every reserve that starts obeys, in every process.

    Written on a connection of our own, so an open transaction of the caller delays nothing.
    Engaging again replaces reason and end.
    """
    named = {"tenant": tenant, "user": user, "feature": feature, "model": model}
    chosen = target(text, everything, named)
    if not str(reason).strip():
        raise ValueError("a switch needs a reason")
    now = timezone.now()
    ends_at = None if minutes is None else now + dt.timedelta(minutes=minutes)
    why, who = _fitting(reason, 500), _fitting(by, 200)
    threads.call(_write, lambda c: _engage(c, chosen, why, who, now, ends_at))


def disengage(
    text: str | None = None,
    *,
    by: Any,
    reason: str = "",
    everything: bool = False,
    tenant: Any = None,
    user: Any = None,
    feature: Any = None,
    model: Any = None,
) -> bool:
    """Let matching calls through again; False if no such switch was engaged."""
    named = {"tenant": tenant, "user": user, "feature": feature, "model": model}
    chosen = target(text, everything, named)
    now = timezone.now()
    why, who = _fitting(reason, 500), _fitting(by, 200)
    return bool(threads.call(_write, lambda c: _release(c, chosen, why, who, now)))


async def aengage(*args: Any, **options: Any) -> None:
    await threads.acall(lambda: engage(*args, **options))


async def adisengage(*args: Any, **options: Any) -> bool:
    return await threads.acall(lambda: disengage(*args, **options))


def _fitting(text: Any, length: int) -> str:
    """What the columns hold of a text: in an emergency a long reason must not stop a stop."""
    return str(text).replace("\x00", "")[:length]


def _write(operation: Any) -> Any:
    def work(connection: BaseDatabaseWrapper) -> Any:
        with transaction(connection):
            return operation(connection)

    alias = getattr(conf.store(), "alias", DEFAULT_DB_ALIAS)
    announcements.changing()
    try:
        found = run(alias, work)
    except StoreUnavailable as error:
        if not isinstance(error.__cause__, IntegrityError):
            raise
        found = run(alias, work)  # somebody else pulled the same switch at the same moment
    announcements.changed()
    return found


def _engage(
    connection: BaseDatabaseWrapper,
    chosen: Target,
    reason: str,
    by: str,
    now: dt.datetime,
    ends_at: dt.datetime | None,
) -> None:
    moment = connection.ops.adapt_datetimefield_value
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE token_allowance_switch SET reason = %s, by = %s, ends_at = %s WHERE {WHERE} "
            "RETURNING id",
            [reason, by, ends_at and moment(ends_at), *chosen.values],
        )
        found = cursor.fetchone()
        if found is None:
            cursor.execute(
                'INSERT INTO token_allowance_switch (tenant, "user", feature, model, reason, by, '
                "engaged_at, ends_at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s) RETURNING id",
                [*chosen.values, reason, by, moment(now), ends_at and moment(ends_at)],
            )
            found = cursor.fetchone()
        _record(cursor, found[0], "engaged", moment(now), by, reason)


def _release(
    connection: BaseDatabaseWrapper, chosen: Target, reason: str, by: str, now: dt.datetime
) -> bool:
    moment = connection.ops.adapt_datetimefield_value
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE token_allowance_switch SET released_at = %s WHERE {WHERE} RETURNING id",
            [moment(now), *chosen.values],
        )
        found = cursor.fetchone()
        if found is None:
            return False
        _record(cursor, found[0], "released", moment(now), by, reason)
        return True


def _record(cursor: Any, switch: int, action: str, at: Any, by: str, reason: str) -> None:
    cursor.execute(
        "INSERT INTO token_allowance_switchevent (switch_id, action, at, by, reason) "
        "VALUES (%s, %s, %s, %s, %s)",
        [switch, action, at, by, reason],
    )
