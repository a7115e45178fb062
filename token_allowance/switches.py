"""Kill switches: engage and release them, in force at the next reserve of every process."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import DEFAULT_DB_ALIAS, IntegrityError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from token_allowance import announcements, conf, streams, threads
from token_allowance.exceptions import StoreUnavailable
from token_allowance.limits import checked_identifier
from token_allowance.stops import ALL_PERCENT
from token_allowance.stores.connections import run
from token_allowance.stores.ledger import transaction

NAMES = ("tenant", "user", "feature", "model")
GLOBAL = "global"
REASON_LENGTH = 500
BY_LENGTH = 200
SOURCE_LENGTH = 16
CODE = "code"
BY_ITSELF = "by itself"
WHERE = 'tenant = %s AND "user" = %s AND feature = %s AND model = %s AND released_at IS NULL'


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How calls are to be stopped, and who says so."""

    reason: str
    by: str
    ends_at: dt.datetime | None
    percent: int
    cuts_streams: bool
    source: str

    def columns(self, moment: Callable[[dt.datetime], Any]) -> list[Any]:
        ends_at = self.ends_at and moment(self.ends_at)
        return [self.reason, self.by, ends_at, self.percent, self.cuts_streams]


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
    cut_streams: bool = False,
    percent: int = ALL_PERCENT,
    anew: bool = False,
    source: str = CODE,
) -> None:
    """Stop matching calls. When this returns, every reserve that starts obeys, in every process.

    Answers that are being streamed end as they would, unless ``cut_streams``: then they end within
    a second or so with SwitchEngaged. ``percent`` (1 to 100) of the callers are stopped, always the
    same ones. Written on a connection of our own, so an open transaction of the caller delays
    nothing. Engaging again replaces all of this; ``anew``: ValueError instead, if it is engaged.
    ``source`` is where it was ordered, for the history.
    """
    named = {"tenant": tenant, "user": user, "feature": feature, "model": model}
    chosen = target(text, everything, named)
    if not str(reason).strip():
        raise ValueError("a switch needs a reason")
    order = Order(
        reason=_fitting(reason, REASON_LENGTH),
        by=_fitting(by, BY_LENGTH),
        ends_at=_end(minutes),
        percent=_percentage(percent),
        cuts_streams=bool(cut_streams),
        source=_fitting(source, SOURCE_LENGTH),
    )
    threads.call(_write, lambda c: _engage(c, chosen, order, timezone.now(), anew))
    threads.call(streams.watch().look)


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
    engaged_for: str | None = None,
    source: str = CODE,
) -> bool:
    """Let matching calls through again; False if no such switch was engaged.

    ``engaged_for``: only if that is still the reason, so that nobody else's stop is undone.
    """
    named = {"tenant": tenant, "user": user, "feature": feature, "model": model}
    chosen = target(text, everything, named)
    order = Order(
        reason=_fitting(reason, REASON_LENGTH),
        by=_fitting(by, BY_LENGTH),
        ends_at=None,
        percent=ALL_PERCENT,
        cuts_streams=False,
        source=_fitting(source, SOURCE_LENGTH),
    )
    return bool(
        threads.call(_write, lambda c: _release(c, chosen, order, timezone.now(), engaged_for))
    )


def close_ended(now: dt.datetime) -> int:
    """Keep in the history which switches have ended by themselves; how many there were."""
    sql = "SELECT id FROM token_allowance_switch WHERE released_at IS NULL AND ends_at <= %s"

    def found(connection: BaseDatabaseWrapper) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(sql, [connection.ops.adapt_datetimefield_value(now)])
            return cursor.fetchone() is not None

    def close(connection: BaseDatabaseWrapper) -> int:
        with connection.cursor() as cursor:
            return _close(cursor, connection.ops.adapt_datetimefield_value(now))

    alias = getattr(conf.store(), "alias", DEFAULT_DB_ALIAS)
    return int(_write(close)) if run(alias, found) else 0


async def aengage(*args: Any, **options: Any) -> None:
    await threads.acall(lambda: engage(*args, **options))


async def adisengage(*args: Any, **options: Any) -> bool:
    return await threads.acall(lambda: disengage(*args, **options))


def _end(minutes: float | None) -> dt.datetime | None:
    if minutes is None:
        return None
    if not minutes > 0:
        raise ValueError(f"minutes={minutes} is not in the future; leave it out to stop for good")
    return timezone.now() + dt.timedelta(minutes=minutes)


def _percentage(percent: int) -> int:
    if type(percent) is not int or not 1 <= percent <= ALL_PERCENT:
        raise ValueError(f"percent={percent!r} is not a whole number from 1 to {ALL_PERCENT}")
    return percent


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
    connection: BaseDatabaseWrapper, chosen: Target, order: Order, now: dt.datetime, anew: bool
) -> None:
    moment = connection.ops.adapt_datetimefield_value
    with connection.cursor() as cursor:
        _close(cursor, moment(now), chosen)
        if anew:
            cursor.execute(f"SELECT id FROM token_allowance_switch WHERE {WHERE}", chosen.values)
            if cursor.fetchone():
                raise ValueError("such a switch is engaged already")
        cursor.execute(
            "UPDATE token_allowance_switch SET reason = %s, by = %s, ends_at = %s, percent = %s, "
            f"cuts_streams = %s WHERE {WHERE} RETURNING id",
            [*order.columns(moment), *chosen.values],
        )
        found = cursor.fetchone()
        if found is None:
            cursor.execute(
                "INSERT INTO token_allowance_switch (reason, by, ends_at, percent, cuts_streams, "
                'tenant, "user", feature, model, engaged_at) '
                "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING id",
                [*order.columns(moment), *chosen.values, moment(now)],
            )
            found = cursor.fetchone()
        _record(cursor, found[0], "engaged", moment(now), order.by, order.reason, order.source)


def _release(
    connection: BaseDatabaseWrapper,
    chosen: Target,
    order: Order,
    now: dt.datetime,
    engaged_for: str | None,
) -> bool:
    moment = connection.ops.adapt_datetimefield_value
    with connection.cursor() as cursor:
        _close(cursor, moment(now), chosen)
        cursor.execute(
            f"UPDATE token_allowance_switch SET released_at = %s WHERE {WHERE} "
            "AND reason = coalesce(%s, reason) RETURNING id",
            [moment(now), *chosen.values, engaged_for],
        )
        found = cursor.fetchone()
        if found is None:
            return False
        _record(cursor, found[0], "released", moment(now), order.by, order.reason, order.source)
        return True


def _close(cursor: Any, now: Any, chosen: Target | None = None) -> int:
    """Write down that switches have ended by themselves; a next one then begins anew."""
    where, values = ("released_at IS NULL", []) if chosen is None else (WHERE, chosen.values)
    cursor.execute(
        f"UPDATE token_allowance_switch SET released_at = ends_at WHERE {where} "
        "AND ends_at <= %s RETURNING id, ends_at",
        [*values, now],
    )
    ended = cursor.fetchall()
    for switch, ended_at in ended:
        _record(cursor, switch, "released", ended_at, BY_ITSELF, "its time was over")
    return len(ended)


def _record(
    cursor: Any, switch: int, action: str, at: Any, by: str, reason: str, source: str = ""
) -> None:
    cursor.execute(
        "INSERT INTO token_allowance_switchevent (switch_id, action, at, by, reason, source, "
        "ends_at, percent, cuts_streams) "
        "SELECT id, %s, %s, %s, %s, %s, ends_at, percent, cuts_streams "
        "FROM token_allowance_switch WHERE id = %s",
        [action, at, by, reason, source, switch],
    )
