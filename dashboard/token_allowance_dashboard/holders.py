"""Whose budgets a limit has: the values that calls of its window have named, the most first."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, F, Q, QuerySet, Sum
from django.db.models import Window as Over
from django.db.models.functions import RowNumber

from token_allowance import conf, rolling
from token_allowance.limits import DIMENSIONS, EACH, Unit, zone
from token_allowance.models import HourlySpend, Limit, Reservation
from token_allowance.windows import Window, span
from token_allowance_dashboard.rulebook import Values

QUARTER = dt.timedelta(minutes=HourlySpend.MINUTES)
ZONES = dt.timedelta(hours=26)  # by so much a tenant's own zone may move a window
TAIL = dt.timedelta(minutes=20)  # of the ledger: roll-ups do not have it yet
LEDGER = dt.timedelta(hours=24)  # sessions are in the ledger only: no more of it is read
MOST_TAIL = 200
EXACT_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Group:
    """Limits that one query can look for: alike in dimensions, in what is exact, in window."""

    shape: tuple[str, ...]
    exact: tuple[str, ...]
    unit: str
    start: dt.datetime | None


def values(
    rows: Iterable[Limit],
    now: dt.datetime,
    tenants: frozenset[str] | None,
    most: int,
    least: int | None = None,
) -> set[Values]:
    """The values that may have a budget of one of these limits: for each limit the ``most`` that
    have used the most, and of those only who has used ``least``, by the roll-ups. More may be
    among them; a rulebook tells whose budget it is.

    No more than are looked at: a counter that is not there yet is summed from the ledger.
    """
    found: set[Values] = set()
    shapes: set[tuple[str, ...]] = set()
    groups = defaultdict[Group, list[Limit]](list)
    for row in rows:
        shape = tuple(name for name in DIMENSIONS if getattr(row, name))
        exact = tuple(name for name in shape if getattr(row, name) != EACH)
        if shape == exact:
            found.add(tuple((name, getattr(row, name)) for name in shape))
        else:
            shapes.add(shape)
            groups[Group(shape, exact, row.unit, begins(row, now))].append(row)
    for group, limits in groups.items():
        found |= _users(group, limits, now, tenants, most, least)
    if shapes and least is None:
        found |= _latest(shapes, now)
    if tenants is None:
        return found
    return {pairs for pairs in found if dict(pairs).get("tenant", "") in tenants}


def begins(row: Limit, now: dt.datetime) -> dt.datetime | None:
    """No later than the window of any of its budgets begins; None: it counts everything."""
    if row.window == Window.TOTAL:
        return None
    if row.window == Window.ROLLING:
        seconds = row.rolling_seconds
        return rolling.counted(seconds, rolling.slice_at(seconds, now)).start
    named = zone(row.time_zone or conf.current().zone_name)
    start = span(Window(row.window), now, named, row.anchor_day).start
    return start and start - (ZONES if row.tenant and not row.time_zone else QUARTER)


def measure(unit: str, *, ledger: bool = False) -> Any:
    """What is added up of roll-ups, or of the ledger."""
    if unit == Unit.COST:
        return Sum("cost_micros", default=0)
    if unit == Unit.TOKENS:
        return Sum(F("input_tokens") + F("output_tokens"), default=0)
    return Count("pk") if ledger else Sum("calls", default=0)


def _users(
    group: Group,
    limits: list[Limit],
    now: dt.datetime,
    tenants: frozenset[str] | None,
    most: int,
    least: int | None,
) -> set[Values]:
    ledger = "session" in group.shape
    rows: QuerySet[Any, Any] = Reservation.objects.all() if ledger else HourlySpend.objects.all()
    start, began = group.start, "created_at" if ledger else "starts_at"
    if ledger:
        start = max(start or now - LEDGER, now - LEDGER)
    where = Q() if start is None else Q(**{f"{began}__gte": start - QUARTER})
    for name in group.shape:
        if name not in group.exact:
            where &= ~Q(**{name: ""})
        elif name != "model":  # it has several names: they are told apart later
            where &= Q(**{f"{name}__in": {getattr(one, name) for one in limits}})
    if tenants is not None and "tenant" in group.shape:
        where &= Q(tenant__in=tenants)
    sums = rows.filter(where).order_by().values(*group.shape)
    ranked = sums.annotate(used=measure(group.unit, ledger=ledger)).annotate(
        place=Over(
            RowNumber(),
            partition_by=[F(name) for name in group.exact] or None,
            order_by=F("used").desc(),
        )
    )
    if least is not None:
        ranked = ranked.filter(used__gte=least)
    found = ranked.filter(place__lte=most).values_list(*group.shape)[: most * EXACT_AT_ONCE]
    return {tuple(zip(group.shape, one, strict=True)) for one in found}


def _latest(shapes: set[tuple[str, ...]], now: dt.datetime) -> set[Values]:
    """Who has called in the last minutes, whether or not a call of theirs has ended."""
    calls = Reservation.objects.filter(created_at__gte=now - TAIL).order_by()
    found = set()
    for row in calls.values(*DIMENSIONS).distinct()[:MOST_TAIL]:
        for shape in shapes:
            if all(row[name] for name in shape):
                found.add(tuple((name, row[name]) for name in shape))
    return found
