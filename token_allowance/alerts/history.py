"""What was spent, summed by quarter of an hour from the roll-ups, and lately from the ledger.

Where a store keeps no roll-ups, or has not done so long enough, the ledger's own rows are summed.
Every query is bounded by indexed moments.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property, reduce
from operator import or_
from typing import Any

from django.db.models import (
    Aggregate,
    BigIntegerField,
    Count,
    ExpressionWrapper,
    F,
    FloatField,
    Func,
    Model,
    Q,
    QuerySet,
    Sum,
)
from django.db.models.expressions import Combinable
from django.db.models.functions import Cast

from token_allowance.alerts import quarters
from token_allowance.alerts.sums import Cell, Sums
from token_allowance.models import HourlySpend, Reservation

CHARGED = Q(state__in=("settled", "expired"), settled_at__isnull=False)
TOKENS = F("input_tokens") + F("output_tokens")
NAMES = ("tenant", "feature")

Names = tuple[str, ...]
Found = dict[Names, dict[int, Sums]]  # by names, then by quarter


class Quarter(Func):
    """The number of the quarter of an hour that a column's moment lies in."""

    output_field = BigIntegerField()

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        template = f"floor(extract(epoch FROM %(expressions)s) / {quarters.SECONDS})::bigint"
        return self.as_sql(compiler, connection, template=template, **extra)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        template = f"CAST(strftime('%%%%s', %(expressions)s) AS INTEGER) / {quarters.SECONDS}"
        return self.as_sql(compiler, connection, template=template, **extra)


class History:
    """What one database knows of the past, looked up once."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def recent(self, since: dt.datetime, until: dt.datetime) -> dict[Cell, Sums]:
        """The finished and charged calls that began in this stretch, from the ledger."""
        rows = self._ledger(since, until).values_list(*NAMES).order_by()
        found = rows.annotate(
            n=Count("pk"),
            micros=Sum("cost_micros", default=0),
            tokens=Sum(TOKENS),
            squared_micros=Sum(_square(F("cost_micros")), default=0.0),
            squared_tokens=Sum(_square(TOKENS)),
        )
        return {(tenant, feature): Sums(*of) for tenant, feature, *of in found}

    def quarters(self, ranges: Sequence[range], by: Names, **only: Any) -> Found:
        """The sums of these quarters by some of ``NAMES``, of rows that ``only`` lets through."""
        rolled, summed = self._parted(ranges)
        found: Found = defaultdict(dict)
        if rolled:
            spend = HourlySpend.objects.using(self.alias).filter(_within("starts_at", rolled))
            self._add(found, spend.filter(**only), F("starts_at"), by, Sum("calls"))
        if summed:
            rows = Reservation.objects.using(self.alias).filter(_within("created_at", summed))
            self._add(found, rows.filter(CHARGED, **only), F("created_at"), by, Count("pk"))
        return found

    def highest_micros(self, quarters_: range, only: Mapping[str, Any]) -> int | None:
        """The most that these rows have cost in one quarter; None if there are none."""
        found = self.quarters([quarters_], (), **only)
        return max((sums.micros for sums in found.get((), {}).values()), default=None)

    @cached_property
    def oldest(self) -> dt.datetime | None:
        """Since when anything is known."""
        moments = (self._edge(HourlySpend, "starts_at"), self._edge(Reservation, "created_at"))
        return min((moment for moment in moments if moment), default=None)

    @cached_property
    def _rolled_up(self) -> tuple[int, int] | None:
        first, last = (self._edge(HourlySpend, name) for name in ("starts_at", "-starts_at"))
        return (quarters.number(first), quarters.number(last)) if first and last else None

    def _parted(self, ranges: Sequence[range]) -> tuple[list[range], list[range]]:
        """What the roll-ups tell of these quarters, and what only the ledger does.

        A day without any roll-up says that none are written any more.
        """
        first, last = self._rolled_up or (0, -quarters.DAY)
        rolled, summed = [], []
        for one in ranges:
            known = range(max(one.start, first), min(one.stop, last + quarters.DAY))
            if not known:
                summed.append(one)
                continue
            rolled.append(known)
            summed += [range(one.start, known.start), range(known.stop, one.stop)]
        return rolled, [one for one in summed if one]

    def _edge(self, model: type[Model], order: str) -> dt.datetime | None:
        rows: QuerySet[Any] = model._default_manager.using(self.alias).order_by(order)
        return rows.values_list(order.removeprefix("-"), flat=True).first()

    def _ledger(self, since: dt.datetime, until: dt.datetime) -> QuerySet[Reservation]:
        rows = Reservation.objects.using(self.alias)
        return rows.filter(CHARGED, created_at__gte=since, created_at__lt=until)

    @staticmethod
    def _add(found: Found, rows: QuerySet[Any], moment: F, by: Names, calls: Aggregate) -> None:
        numbered = rows.order_by().annotate(quarter=Quarter(moment)).values_list("quarter", *by)
        summed = numbered.annotate(n=calls, micros=Sum("cost_micros", default=0), t=Sum(TOKENS))
        for quarter, *rest in summed:
            names, figures = tuple(rest[: len(by)]), rest[len(by) :]
            found[names][int(quarter)] = Sums(*map(int, figures))


def _square(whole: Combinable) -> Combinable:
    """As a float: the square of a large cost has no room in a whole number."""
    number = Cast(whole, FloatField())
    return ExpressionWrapper(number * number, FloatField())


def _within(name: str, ranges: Sequence[range]) -> Q:
    conditions = (
        Q(**{f"{name}__gte": quarters.start(one.start), f"{name}__lt": quarters.start(one.stop)})
        for one in ranges
    )
    return reduce(or_, conditions)
