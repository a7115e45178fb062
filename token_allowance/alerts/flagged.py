"""What the ledger has noted about the last calls of each model."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from functools import reduce
from operator import or_

from django.db.models import Count, Q, Sum

from token_allowance.models import Reservation
from token_allowance.stores.rollups import NOT_BY_THE_PROVIDER


@dataclass(frozen=True, slots=True)
class Flagged:
    """Calls that began in a stretch, and those of them that bear one of the flags asked for."""

    provider: str
    model: str
    calls: int
    micros: int
    flagged_calls: int
    flagged_micros: int
    costless_calls: int  # flagged, and without any cost

    @property
    def name(self) -> str:
        return f"{self.provider} {self.model}".strip()


ESTIMATED = tuple(sorted(NOT_BY_THE_PROVIDER))


def models(
    alias: str, since: dt.datetime, until: dt.datetime, flags: tuple[str, ...]
) -> list[Flagged]:
    """Each model with calls that bear one of the flags, the most of them first."""
    has_one = bears(*flags)
    rows = Reservation.objects.using(alias).filter(created_at__gte=since, created_at__lt=until)
    charged = rows.filter(state__in=("settled", "expired"), settled_at__isnull=False)
    found = (
        charged.order_by()
        .values_list("provider", "model")
        .annotate(
            n=Count("pk"),
            micros=Sum("cost_micros", default=0),
            flagged=Count("pk", filter=has_one),
            flagged_micros=Sum("cost_micros", filter=has_one, default=0),
            costless=Count("pk", filter=has_one & Q(cost_micros=None)),
        )
    )
    return [Flagged(*row) for row in found.filter(flagged__gt=0).order_by("-flagged")]


def bears(*flags: str) -> Q:
    """Words that both databases understand; PostgreSQL alone has better ones."""
    return reduce(or_, (Q(flags__icontains=f'"{flag}"') for flag in flags))
