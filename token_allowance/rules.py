"""Limits as the policy reads them: those that may concern a call, with their increases."""

from __future__ import annotations

import datetime as dt
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from token_allowance import levels
from token_allowance.increases import Increase
from token_allowance.ladder import Ladder, Step
from token_allowance.limits import EACH, Attribution, Limit, Unit
from token_allowance.windows import Window

COLUMNS = (
    "id", "tenant", "user", "session", "feature", "model", "plan", "window", "rolling_seconds",
    "anchor_day", "time_zone", "unit", "amount", "mode", "notify_at", "degrade_at",
    "hard_stop_percent", "tracked_since", "expires_at",
)  # fmt: skip
PEOPLE = ("tenant", "user", "session")
GENERIC = " AND ".join(f"\"{name}\" IN ('', '{EACH}')" for name in PEOPLE)
INCREASES = "token_allowance_limitincrease"


def generic(connection: BaseDatabaseWrapper) -> list[Limit]:
    """The limits that name no tenant, user or session: few, and they may concern every call."""
    return _limits(connection, GENERIC, [])


def has_specific(connection: BaseDatabaseWrapper) -> bool:
    sql = f"SELECT 1 FROM token_allowance_limit WHERE is_active AND NOT ({GENERIC}) LIMIT 1"
    return bool(rows(connection, sql))


def specific(connection: BaseDatabaseWrapper, attribution: Attribution) -> list[Limit]:
    """Limits that name this tenant, user or session; and for each of them that the call lacks, one
    limit that names some value of it, so that the call is seen to be unattributed (case C78)."""
    conditions, values = [], []
    for name in PEOPLE:
        conditions.append(f"\"{name}\" IN ('', '{EACH}', %s)")
        values.append(getattr(attribution, name))
    found = _limits(connection, f"NOT ({GENERIC}) AND {' AND '.join(conditions)}", values)
    for place, name in enumerate(PEOPLE):
        if not getattr(attribution, name):
            others = conditions[:place] + conditions[place + 1 :]
            where = f"\"{name}\" NOT IN ('', '{EACH}') AND {' AND '.join(others)} LIMIT 1"
            found += _limits(connection, where, values[:place] + values[place + 1 :])
    return found


def has_increases(connection: BaseDatabaseWrapper, now: dt.datetime) -> bool:
    until = connection.ops.adapt_datetimefield_value(now)
    sql = f"SELECT 1 FROM {INCREASES} WHERE until > %s LIMIT 1"
    return bool(rows(connection, sql, [until]))


def with_increases(
    connection: BaseDatabaseWrapper, limits: list[Limit], attribution: Attribution, now: dt.datetime
) -> list[Limit]:
    """These limits, each with the increases that this tenant and user have and may still use."""
    if not limits:
        return limits
    marks = ", ".join(["%s"] * len(limits))
    sql = (
        f'SELECT limit_id, amount, until, tenant, "user" FROM {INCREASES} WHERE limit_id IN '
        f"({marks}) AND until > %s AND tenant IN ('', %s) AND \"user\" IN ('', %s)"
    )
    until = connection.ops.adapt_datetimefield_value(now)
    given = [*(limit.id for limit in limits), until, attribution.tenant, attribution.user]
    found = defaultdict[int | None, list[Increase]](list)
    for limit_id, amount, ends, tenant, user in rows(connection, sql, given):
        increase = Increase(amount=amount, until=_utc(ends), tenant=tenant, user=user)
        found[limit_id].append(increase)
    return [replace(limit, increases=tuple(found[limit.id])) for limit in limits]


def ladder(connection: BaseDatabaseWrapper, named: Callable[[str], str]) -> Ladder:
    """The degrade rules in force; ``named`` gives the name of a model in limits."""
    sql = (
        "SELECT from_model, to_model, max_output_tokens, feature FROM token_allowance_degraderule "
        "WHERE is_active ORDER BY from_model, feature, id"
    )
    return Ladder(
        Step(from_model=named(model), to_model=other, max_output_tokens=most, feature=feature)
        for model, other, most, feature in rows(connection, sql)
    )


def rows(connection: BaseDatabaseWrapper, sql: str, values: Iterable[Any] = ()) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, list(values))
        found: list[Any] = cursor.fetchall()
        return found


def moment(value: dt.datetime | str | None) -> dt.datetime | None:
    """A column's value as an aware datetime."""
    return None if value is None else _utc(value)


def _utc(value: dt.datetime | str) -> dt.datetime:
    if isinstance(value, str):
        value = dt.datetime.fromisoformat(value)
    return value if value.tzinfo else value.replace(tzinfo=dt.UTC)


def _limits(connection: BaseDatabaseWrapper, where: str, values: list[Any]) -> list[Limit]:
    columns = ", ".join(f'"{name}"' for name in COLUMNS)
    sql = f"SELECT {columns} FROM token_allowance_limit WHERE is_active AND {where}"
    return [_limit(dict(zip(COLUMNS, r, strict=True))) for r in rows(connection, sql, values)]


def _limit(row: dict[str, Any]) -> Limit:
    row["observe"] = row.pop("mode") == "observe"
    row["window"], row["unit"] = Window(row["window"]), Unit(row["unit"])
    row["expires_at"] = moment(row["expires_at"])
    row["notify_at"] = _levels(row["notify_at"])
    return Limit(**row)


def _levels(written: object) -> tuple[int, ...]:
    """The percentages of a JSON column, lowest first; the usual ones if it holds anything else."""
    try:
        found: Any = json.loads(written) if isinstance(written, str) else written
    except (ValueError, RecursionError):
        return levels.NOTIFY_AT
    return tuple(sorted(set(found))) if levels.are_levels(found) else levels.NOTIFY_AT
