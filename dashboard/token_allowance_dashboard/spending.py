"""Spending in figures: sums of the roll-ups, and of the ledger for what is not rolled up yet.

The roll-ups hold quarters of an hour. Those that may still miss a call, the last ones, are summed
from the ledger instead; so each call is counted once, and all sums of one moment agree.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import connections
from django.db.models import Case, Count, F, IntegerField, Q, QuerySet, Sum, Value, When
from django.db.models.expressions import RawSQL
from django.db.models.functions import Coalesce

from token_allowance import conf, spend
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import HourlySpend, Mark, Reservation
from token_allowance.stores.quarters import ESTIMATED
from token_allowance_dashboard.periods import QUARTER, Period

DIMENSIONS = ("feature", "model", "tenant", "user", "provider")
SUMS = (
    "calls", "estimated_calls", "unpriced_calls", "cost_micros", "estimated_micros",
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens",
)  # fmt: skip
SETTLING = dt.timedelta(minutes=20)  # a transaction may commit later than the moment it notes
MOST_TAIL = dt.timedelta(hours=2)  # of ledger that a page sums: the roll-ups stand still otherwise


@dataclass(frozen=True, slots=True)
class Figures:
    """Sums over calls that are final and charged. Money in micro-dollars."""

    calls: int = 0
    estimated_calls: int = 0
    unpriced_calls: int = 0
    cost_micros: int = 0
    estimated_micros: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(*(getattr(self, name) + getattr(other, name) for name in SUMS))

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def micros_per_call(self) -> int | None:
        return -(-self.cost_micros // self.calls) if self.calls else None


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one group. ``keys`` are the values of the dimensions grouped by."""

    keys: tuple[str, ...]
    figures: Figures


@dataclass(frozen=True, slots=True)
class Scope:
    """Which calls are meant. ``named`` narrows to values, ``""`` being calls that name none;
    ``tenants`` is what the person may see, None everything."""

    named: Mapping[str, str] = field(default_factory=dict)
    tenants: frozenset[str] | None = None

    def where(self) -> Q:
        found = Q(**dict(self.named))
        if self.tenants is not None:
            found &= Q(tenant__in=self.tenants)
        return found


@dataclass(frozen=True, slots=True)
class Edge:
    """Until when the roll-ups are whole, and as of when all figures hold."""

    rolled: dt.datetime | None  # None: they never miss anything that the ledger has
    as_of: dt.datetime | None  # None: no roll-up was ever made

    def split(self, start: dt.datetime, end: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
        """Roll-ups count until the first of the two, and the ledger from the second on."""
        if self.rolled is None:
            return end, end
        edge = max(start, min(end, self.rolled))
        return edge, edge


def edge(now: dt.datetime) -> Edge:
    store = conf.store()
    behind = store.behind_seconds()
    if behind is not None:  # its drainer moves the roll-ups with the ledger
        return Edge(None, now - dt.timedelta(seconds=behind))
    mark = Mark.objects.filter(job=spend.JOB).values_list("at", flat=True).first()
    since = max(mark or now - MOST_TAIL, now - MOST_TAIL) - SETTLING
    seconds = int(since.timestamp()) // int(QUARTER.total_seconds()) * int(QUARTER.total_seconds())
    return Edge(dt.datetime.fromtimestamp(seconds, dt.UTC), mark)


def edge_or_none(now: dt.datetime) -> Edge | None:
    """The same; None while the store cannot say how far behind the ledger is."""
    try:
        return edge(now)
    except StoreUnavailable:
        return None


def total(period: Period, scope: Scope, at: Edge) -> Figures:
    rows = grouped(period.start, period.end, scope, (), at)
    return rows[0].figures if rows else Figures()


def grouped(
    start: dt.datetime, end: dt.datetime, scope: Scope, by: Iterable[str], at: Edge
) -> list[Row]:
    """The figures of each group, the dearest first."""
    names = tuple(by)
    until, since = at.split(start, end)
    found = dict[tuple[str, ...], Figures]()
    for source in (_rolled(start, until, scope), _ledger(since, end, scope)):
        for row in _summed(source, names):
            keys = tuple(row[name] for name in names)
            more = Figures(*(int(row[f"sum_{name}"] or 0) for name in SUMS))
            found[keys] = found[keys] + more if keys in found else more
    rows = [Row(keys, figures) for keys, figures in found.items()]
    return sorted(rows, key=lambda row: (-row.figures.cost_micros, -row.figures.calls, row.keys))


def buckets(
    parts: list[tuple[dt.datetime, dt.datetime]], scope: Scope, by: Iterable[str], at: Edge
) -> list[dict[tuple[str, ...], Figures]]:
    """For each part, as (start, end) that follow each other, the figures of each group in it."""
    if not parts:
        return []
    names = tuple(by)
    found: list[dict[tuple[str, ...], Figures]] = [{} for _ in parts]
    until, since = at.split(parts[0][0], parts[-1][1])
    rolled = _rolled(parts[0][0], until, scope).annotate(part=_part(parts, "starts_at"))
    ledger = _ledger(since, parts[-1][1], scope).annotate(part=_part(parts, "created_at"))
    for source in (rolled, ledger):
        for row in _summed(source, (*names, "part")):
            if row["part"] is None:
                continue
            keys = tuple(row[name] for name in names)
            more = Figures(*(int(row[f"sum_{name}"] or 0) for name in SUMS))
            bucket = found[row["part"]]
            bucket[keys] = bucket[keys] + more if keys in bucket else more
    return found


def _part(parts: list[tuple[dt.datetime, dt.datetime]], name: str) -> Case:
    """The place of a row's moment among the parts: any zone and any length, in SQL."""
    return Case(*(When(**{f"{name}__lt": end}, then=Value(n)) for n, (_, end) in enumerate(parts)))


def _rolled(start: dt.datetime, end: dt.datetime, scope: Scope) -> QuerySet[Any]:
    return HourlySpend.objects.filter(scope.where(), starts_at__gte=start, starts_at__lt=end)


def _ledger(start: dt.datetime, end: dt.datetime, scope: Scope) -> QuerySet[Any]:
    """Calls that are final and charged, with the columns of a roll-up."""
    final = Q(state="settled") | Q(state="expired", settled_at__isnull=False)
    vendor = connections[Reservation.objects.db].vendor
    estimated = RawSQL(f"CASE WHEN {ESTIMATED[vendor]} THEN 1 ELSE 0 END", [], IntegerField())
    rows = Reservation.objects.filter(final, scope.where(), created_at__gte=start)
    return rows.filter(created_at__lt=end).annotate(
        calls=Value(1),
        estimated_calls=estimated,
        unpriced_calls=Case(When(cost_micros__isnull=True, then=1), default=0),
        estimated_micros=Case(When(estimated_calls=1, then=Coalesce("cost_micros", 0)), default=0),
    )


def _summed(rows: QuerySet[Any], by: tuple[str, ...]) -> Iterable[dict[str, Any]]:
    sums = {f"sum_{name}": Sum(name) for name in SUMS}
    if not by:
        return [rows.order_by().aggregate(**sums)]
    groups: Iterable[dict[str, Any]] = rows.order_by().values(*by).annotate(**sums)
    return groups


def first_and_last(scope: Scope) -> tuple[dt.datetime | None, dt.datetime | None]:
    """When the first and the last call began."""
    rows = Reservation.objects.filter(scope.where())
    first = rows.order_by("created_at").values_list("created_at", flat=True).first()
    last = rows.order_by("-created_at").values_list("created_at", flat=True).first()
    return first, last


def in_flight(scope: Scope) -> tuple[int, int]:
    """Calls that are reserved and not settled, and what they hold in micro-dollars."""
    found = Reservation.objects.filter(scope.where(), state="reserved").aggregate(
        calls=Count("*"), micros=Coalesce(Sum(F("reserved_micros")), 0)
    )
    return int(found["calls"]), int(found["micros"])
