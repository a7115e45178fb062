"""One user who calls too often, refused calls included: a loop that is refused is still a loop.

``threshold``: calls a minute. ``minutes``: of how many whole minutes the mean is taken.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal

from django.db.models import Count, Sum

from token_allowance.alerts import telling
from token_allowance.alerts.finding import Finding
from token_allowance.models import AlertRule, Refusal, Reservation

THRESHOLD = Decimal(60)
STAY = 2  # who has begun has stopped below the threshold divided by this
MOST = 20  # findings at a time

Person = tuple[str, str]  # tenant, user


def find(rule: AlertRule, now: dt.datetime) -> Iterator[Finding]:
    minutes = rule.minutes or 1
    until = now.replace(second=0, microsecond=0)
    since = until - dt.timedelta(minutes=minutes)
    threshold = THRESHOLD if rule.threshold is None else rule.threshold
    made, refused = calls(telling.alias_of(rule), since, until, threshold * minutes / STAY)
    begun = telling.begun(rule)
    busiest = sorted(made.keys() | refused.keys(), key=lambda one: -made[one] - refused[one])
    for person in busiest[:MOST]:
        target = telling.scope(dict(zip(("tenant", "user"), person, strict=True)))
        least = threshold / STAY if target in begun else threshold
        if made[person] + refused[person] >= least * minutes:
            yield _finding(target, person, made[person], refused[person], threshold, since, minutes)


def calls(
    alias: str, since: dt.datetime, until: dt.datetime, least: Decimal
) -> tuple[defaultdict[Person, int], defaultdict[Person, int]]:
    """The calls made and refused by each user who has ``least`` of both in this stretch."""
    ledger = Reservation.objects.using(alias).filter(created_at__gte=since, created_at__lt=until)
    made = ledger.exclude(user="").order_by().values_list("tenant", "user").annotate(Count("pk"))
    counts = Refusal.objects.using(alias).filter(starts_at__gte=since, starts_at__lt=until)
    refused = counts.exclude(user="").order_by().values_list("tenant", "user")
    found = defaultdict[Person, int](int), defaultdict[Person, int](int)
    for place, rows in enumerate((made, refused.annotate(Sum("calls")))):
        for tenant, user, count in rows:
            found[place][tenant, user] = count
    for person in found[0].keys() | found[1].keys():
        if found[0][person] + found[1][person] < least:
            del found[0][person], found[1][person]
    return found


def _finding(
    target: str,
    person: Person,
    made: int,
    refused: int,
    threshold: Decimal,
    since: dt.datetime,
    minutes: int,
) -> Finding:
    tenant, user = person
    name = telling.short(user, 60)
    whose = f"user {name} of {telling.short(tenant, 60)}" if tenant else f"user {name}"
    rate = (made + refused) // minutes
    return Finding(
        target=target,
        title=f"{whose} makes {rate:,} calls a minute",
        tenant=tenant,
        user=user,
        value=rate,
        threshold=int(threshold),
        unit="calls",
        since=since,
        details=telling.details(
            minutes=minutes,
            made=made,
            refused=refused,
            sentence=f"{whose} made {telling.plural(made, 'call')} in "
            f"{telling.plural(minutes, 'minute')}, and {refused:,} more were refused; this is told "
            f"from {int(threshold):,} a minute on.",
        ),
    )
