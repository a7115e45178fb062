"""Budgets that will be spent before their window ends, at the present pace.

Told as information, once in a window; and as critical, once more, when the pace of the last hour
and of the last five minutes would spend the rest within an hour. Not of single users and sessions,
who are meant to meet their limits, of windows that roll, or of windows of an hour and less. The
rule's severity, ``threshold`` and ``minutes`` are not looked at.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from itertools import islice
from typing import Any

from django.db import connections

from token_allowance import conf, policy
from token_allowance.alerts import pace, standing, telling
from token_allowance.alerts.finding import Finding
from token_allowance.alerts.rungs import period, whose
from token_allowance.channels import figures
from token_allowance.limits import DIMENSIONS, Budget, Unit
from token_allowance.models import AlertRule, Severity
from token_allowance.stores.base import Room

HOUR = dt.timedelta(seconds=pace.HOUR_SECONDS)
MOMENT = dt.timedelta(seconds=pace.MOMENT_SECONDS)
SECOND = dt.timedelta(seconds=1)
MOST = 500  # budgets that are asked for at a time
PEOPLE = ("user", "session")
SOON, SOMETIME = 2, 1  # rungs: what is told as critical is not told as information later
COUNTERS = {
    "postgresql": "jsonb_array_elements(r.holds) h",
    "sqlite": "json_each(r.holds) h",
}
KEYS = {"postgresql": "h.value ->> 0", "sqlite": "json_extract(h.value, '$[0]')"}
SUMS = {
    Unit.COST: "sum(cost_micros)",
    Unit.TOKENS: "sum(input_tokens + output_tokens)",
    Unit.CALLS: "count(*)",
}

Spent = dict[str, dict[Unit, tuple[int, int]]]  # by counter: in the last hour, and moment


def find(rule: AlertRule, now: dt.datetime) -> Iterator[Finding]:
    spent = lately(telling.alias_of(rule), now)
    named = standing.named(policy.confirmed(), spent, now)
    budgets = iter([budget for budget in named.values() if _is_told(budget, now)])
    while some := list(islice(budgets, MOST)):
        for room in conf.store().usage(some):
            hour, moment = spent[room.budget.key][room.budget.limit.unit]
            used = _used(room, hour, moment, now)
            if used is not None and (found := pace.forecast(used)) is not None:
                yield _finding(room, found, now)


def lately(alias: str, now: dt.datetime) -> Spent:
    """What calls that ended in the last hour, and in the last five minutes, have spent of each
    budget."""
    connection = connections[alias]
    recent = "FILTER (WHERE r.settled_at >= %s)"
    sums = ", ".join(f"coalesce({s}, 0), coalesce({s} {recent}, 0)" for s in SUMS.values())
    since, moment = (
        connection.ops.adapt_datetimefield_value(now - length) for length in (HOUR, MOMENT)
    )
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {KEYS[connection.vendor]}, {sums} "
            f"FROM token_allowance_reservation r, {COUNTERS[connection.vendor]} "
            "WHERE r.settled_at IS NOT NULL AND r.settled_at >= %s "
            "AND r.state IN ('settled', 'expired') GROUP BY 1",
            [*[moment] * len(SUMS), since],
        )
        rows = cursor.fetchall()
    return {key: dict(zip(SUMS, _pairs(figures), strict=True)) for key, *figures in rows}


def _pairs(found: list[Any]) -> list[tuple[int, int]]:
    return [(int(hour), int(moment)) for hour, moment in zip(found[::2], found[1::2], strict=True)]


def _is_told(budget: Budget, now: dt.datetime) -> bool:
    people = any(name in PEOPLE for name, _ in budget.values)
    return not people and budget.slice is None and budget.window.contains(now)


def _used(room: Room, hour: int, moment: int, now: dt.datetime) -> pace.Used | None:
    """None for a budget that never began and never ends, until it has been watched for an hour."""
    limit, window = room.budget.limit, room.budget.window
    elapsed = pace.HOUR_SECONDS
    if window.start is not None:
        elapsed = (now - window.start) // SECOND
    left = None if window.end is None else (window.end - now) // SECOND
    return pace.Used(limit.amount, room.used, elapsed, left, hour, moment)


def _finding(room: Room, found: pace.Forecast, now: dt.datetime) -> Finding:
    budget, limit, unit = room.budget, room.budget.limit, room.budget.limit.unit.value
    target, window = period(budget, now)
    at = (now + found.seconds * SECOND).isoformat()
    amount, used = (figures.amount_text(one, unit) for one in (limit.amount, room.used))
    pace_, end = ("at the present rate" if found.soon else "at this pace"), budget.window.end
    when = figures.until_text(at, now.isoformat())
    return Finding(
        target=target,
        window=window,
        rung=SOON if found.soon else SOMETIME,
        amount=limit.amount,
        severity=Severity.CRITICAL if found.soon else Severity.INFO,
        title=f"{whose(budget)}: {pace_} the {limit.adjective} limit is reached {when}; "
        f"{used} of {amount} used",
        value=room.used,
        threshold=limit.amount,
        unit=unit,
        since=now - HOUR,
        details={
            "state_after": "warning",
            "used": room.used,
            "amount": limit.amount,
            "window": limit.adjective,
            "resets_at": end and end.isoformat(),
            "forecast_at": at,
            "limit": limit.id,
        },
        **{name: value for name, value in budget.values if name in DIMENSIONS},
    )
