"""What is kept of the moment of an alert: above all, who was spending."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from django.db.models import Count, F, Min, Q, QuerySet, Sum

from token_allowance.alerts.finding import Finding
from token_allowance.limits import DIMENSIONS
from token_allowance.models import HourlySpend, Reservation

LAST = dt.timedelta(minutes=15)
TOP = 5
WEEKS = 4  # that the usual number of calls is taken from
USUAL_MOST = dt.timedelta(hours=6)  # of a longer stretch nothing is said to be usual
WHO = ("tenant", "user", "feature", "model")
FINAL = Q(state__in=("settled", "expired"), settled_at__isnull=False)
ORDERS = {"tokens": "tokens", "calls": "calls"}  # by unit; else by cost
QUARTER = dt.timedelta(minutes=HourlySpend.MINUTES)


def taken(finding: Finding, now: dt.datetime, alias: str) -> dict[str, Any]:
    """The snapshot of a finding: its details, and the top spenders of what it is about."""
    since = finding.since or now - LAST
    about = {name: value for name in DIMENSIONS if (value := getattr(finding, name))}
    return {
        "taken_at": now.isoformat(),
        "since": since.isoformat(),
        "top_minutes": int((now - since) / dt.timedelta(minutes=1)),
        "top_spenders": spenders(about, since, now, alias, ORDERS.get(finding.unit, "cost_micros")),
        **finding.details,
    }


def spenders(
    about: Mapping[str, str], since: dt.datetime, now: dt.datetime, alias: str, by: str
) -> list[dict[str, Any]]:
    """Who has spent most since then of calls with these values, the first the most.

    ``percent`` is the share, by cost, tokens or calls as ``by`` says; ``usual_calls`` the calls in
    an average week at this time, None in the first.
    """
    rows = Reservation.objects.using(alias).filter(
        FINAL, created_at__gte=since, created_at__lte=now, **about
    )
    sums = {
        "micros": Sum("cost_micros", default=0),
        "tokens": Sum(F("input_tokens") + F("output_tokens"), default=0),
        "calls": Count("pk"),
    }
    order = "micros" if by == "cost_micros" else by
    whole = rows.aggregate(**sums)[order]
    top = list(rows.order_by().values(*WHO).annotate(**sums).order_by(f"-{order}", *WHO)[:TOP])
    usual = _usual(top, since, now, alias)
    return [
        {
            **{name: one[name] for name in WHO},
            "cost_micros": one["micros"],
            "tokens": one["tokens"],
            "calls": one["calls"],
            "percent": one[order] * 100 // whole if whole else 0,
            "usual_calls": None if usual is None else usual.get(tuple(one[n] for n in WHO), 0),
        }
        for one in top
    ]


def _usual(
    top: list[dict[str, Any]], since: dt.datetime, now: dt.datetime, alias: str
) -> dict[tuple[str, ...], int] | None:
    """How many calls each of them makes in this stretch of an average week."""
    spends = HourlySpend.objects.using(alias)
    first = spends.aggregate(first=Min("starts_at"))["first"]
    weeks = min(WEEKS, (now - first).days // 7) if first else 0
    if not top or not weeks or now - since > USUAL_MOST:
        return None
    wanted = [{name: one[name] for name in WHO} for one in top]
    chosen: Q = Q()
    for one in wanted:
        chosen |= Q(**one)
    quarters = [
        start - dt.timedelta(weeks=week)
        for start in _quarters(since, now)
        for week in range(1, weeks + 1)
    ]
    found: QuerySet[HourlySpend, Any] = spends.filter(chosen, starts_at__in=quarters)
    length = len(quarters) // weeks * QUARTER
    return {
        tuple(row[name] for name in WHO): row["all"] * ((now - since) // dt.timedelta(seconds=1))
        // (int(length.total_seconds()) * weeks)
        for row in found.order_by().values(*WHO).annotate(all=Sum("calls"))
    }  # fmt: skip


def _quarters(since: dt.datetime, now: dt.datetime) -> list[dt.datetime]:
    start = since - (since - dt.datetime.min.replace(tzinfo=dt.UTC)) % QUARTER
    count = -(-(now - start) // QUARTER)
    return [start + number * QUARTER for number in range(count)]
