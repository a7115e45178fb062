"""Which budgets may have reached a rung since they were looked at last."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.models import Count, F, Q, QuerySet, Sum

from token_allowance import conf, levels, rolling
from token_allowance.alerts.standing import Values
from token_allowance.limits import DIMENSIONS, Unit, zone
from token_allowance.models import (
    Adjustment,
    HourlySpend,
    Limit,
    LimitIncrease,
    PolicyVersion,
    Reservation,
)
from token_allowance.windows import Window, span

KINDS = ("limits", "tenants")  # of policy that decide how much whose budget is
#: By this much a tenant's own zone may move the start of its windows.
ZONES = dt.timedelta(hours=26)
HELD = {
    "postgresql": "SELECT DISTINCT h.value ->> 0 FROM token_allowance_reservation r, "
    "jsonb_array_elements(r.holds) h",
    "sqlite": "SELECT DISTINCT CASE h.type WHEN 'array' THEN json_extract(h.value, '$[0]') END "
    "FROM token_allowance_reservation r, json_each(r.holds) h",
}
OWN = ("window", "rolling_seconds", "anchor_day", "time_zone", "unit", "amount", "notify_at")
QUARTER = dt.timedelta(minutes=HourlySpend.MINUTES)
CHARGED = Q(state__in=("settled", "expired"), settled_at__isnull=False)


@dataclass(frozen=True, slots=True)
class Group:
    """Limits that one query can look for: the same dimensions and unit, in windows alike."""

    shape: tuple[str, ...]
    unit: str
    start: dt.datetime | None


def version(alias: str) -> int:
    """A number that rises when limits or tenants change."""
    rows = PolicyVersion.objects.using(alias).filter(kind__in=KINDS)
    return int(rows.aggregate(all=Sum("number", default=0))["all"])


def ended(alias: str, since: dt.datetime | None, now: dt.datetime) -> bool:
    """Has a limit or an increase ended by itself since then? No version rises for that."""
    if since is None:
        return False
    limits = Limit.objects.using(alias).filter(is_active=True)
    increases = LimitIncrease.objects.using(alias)
    return (
        limits.filter(expires_at__gt=since, expires_at__lte=now).exists()
        or increases.filter(until__gt=since, until__lte=now).exists()
    )


def moved(alias: str, since: dt.datetime) -> set[str]:
    """The counters of calls that have ended since then, and of adjustments."""
    connection = connections[alias]
    with connection.cursor() as cursor:
        cursor.execute(
            f"{HELD[connection.vendor]} WHERE r.settled_at IS NOT NULL AND r.settled_at >= %s",
            [connection.ops.adapt_datetimefield_value(since)],
        )
        found = {key for (key,) in cursor.fetchall() if isinstance(key, str)}
    adjustments = Adjustment.objects.using(alias).filter(created_at__gte=since)
    return found.union(adjustments.values_list("key", flat=True))


def adjusted(alias: str) -> Iterator[str]:
    """The counters that somebody has corrected: sums of calls do not tell of them."""
    keys = Adjustment.objects.using(alias).order_by().values_list("key", flat=True)
    return keys.distinct().iterator()


def near_a_rung(alias: str, now: dt.datetime) -> set[Values]:
    """The values whose calls add up to the lowest rung of some limit on such values.

    One query for all limits that look at the same dimensions in windows alike, however many there
    are. More than have reached a rung may be among them: only their figures tell.
    """
    found: set[Values] = set()
    for group, least in _groups(alias, now).items():
        rows, measure = _rows(alias, group)
        if not group.shape:
            reached = rows.aggregate(used=measure)["used"] >= least
            found |= {()} if reached else set()
            continue
        sums = rows.order_by().values(*group.shape).annotate(used=measure).filter(used__gte=least)
        for values in sums.values_list(*group.shape).iterator():
            found.add(tuple(zip(group.shape, values, strict=True)))
    return found


def _groups(alias: str, now: dt.datetime) -> dict[Group, int]:
    """The least that is used at the lowest rung of the limits of each group."""
    least: dict[Group, int] = {}
    limits = Limit.objects.using(alias).filter(is_active=True).exclude(expires_at__lte=now)
    for limit in limits.only(*DIMENSIONS, *OWN).iterator():
        if not limit.notify_at:
            continue
        shape = tuple(name for name in DIMENSIONS if getattr(limit, name))
        group = Group(shape, limit.unit, _start(limit, now))
        needed = max(1, levels.reached_from(limit.amount, min(limit.notify_at)))
        least[group] = min(needed, least.get(group, needed))
    return least


def _start(limit: Limit, now: dt.datetime) -> dt.datetime | None:
    """No later than the window of any of its budgets begins."""
    if limit.window == Window.TOTAL:
        return None
    if limit.window == Window.ROLLING:
        seconds = limit.rolling_seconds
        return rolling.counted(seconds, rolling.slice_at(seconds, now)).start
    named = zone(limit.time_zone or conf.current().zone_name)
    start = span(Window(limit.window), now, named, limit.anchor_day).start
    return start and start - ZONES


def _rows(alias: str, group: Group) -> tuple[QuerySet[Any, Any], Any]:
    """What to add up: roll-ups, or where these do not tell enough, the ledger."""
    ledger = "session" in group.shape
    rows: QuerySet[Any, Any] = HourlySpend.objects.using(alias)
    if ledger:
        rows = Reservation.objects.using(alias).filter(CHARGED)
    if group.start is not None:
        began = "created_at" if ledger else "starts_at"
        rows = rows.filter(**{f"{began}__gte": group.start - QUARTER})
    for name in group.shape:
        rows = rows.exclude(**{name: ""})
    match group.unit:
        case Unit.COST:
            return rows, Sum("cost_micros", default=0)
        case Unit.TOKENS:
            return rows, Sum(F("input_tokens") + F("output_tokens"), default=0)
    return rows, Count("pk") if ledger else Sum("calls", default=0)
