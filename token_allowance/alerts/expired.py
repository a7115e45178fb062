"""Reservations of one target end again and again without a word: its process dies, or hangs.

``threshold``: how many, ``minutes``: in how long. What they may have spent is not known
(protocol 10).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from django.db.models import Count, Sum

from token_allowance import conf
from token_allowance.alerts import telling
from token_allowance.alerts.finding import Finding
from token_allowance.alerts.sums import Target
from token_allowance.models import AlertRule, Reservation

LEAST = 5
MINUTES = 15
LONGEST = dt.timedelta(hours=2)  # an answer that streams, beside the lease; deferred calls are not
MOST = 20  # findings at a time
STAY = 2


def find(rule: AlertRule, now: dt.datetime) -> Iterator[Finding]:
    minutes, least = rule.minutes or MINUTES, int(rule.threshold or LEAST)
    since, begun = now - dt.timedelta(minutes=minutes), telling.begun(rule)
    lease = dt.timedelta(seconds=conf.current().RESERVATION_SECONDS)
    rows = Reservation.objects.using(telling.alias_of(rule)).filter(
        created_at__gte=since - lease - LONGEST,
        created_at__lte=now,
        state=Reservation.States.EXPIRED,
        expires_at__gte=since,
        expires_at__lte=now,
    )
    counted = (
        rows.order_by()
        .values_list("tenant", "feature")
        .annotate(n=Count("pk"), held=Sum("reserved_micros", default=0))
    )
    for tenant, feature, count, held in counted.order_by("-n", "tenant", "feature")[:MOST]:
        target = Target(tenant, feature)
        if count >= (least / STAY if str(target) in begun else least):
            yield _finding(target, count, held, least, since, minutes)


def _finding(
    target: Target, count: int, held: int, least: int, since: dt.datetime, minutes: int
) -> Finding:
    return Finding(
        target=str(target),
        title=f"{telling.short(target.name)}: {telling.plural(count, 'call')} ended "
        f"without a word in {minutes} minutes; {telling.usd(held)} was held for them",
        tenant=target.tenant,
        feature=target.feature,
        value=count,
        threshold=least,
        unit="calls",
        since=since,
        details=telling.details(
            minutes=minutes, held_micros=held, on_expire=conf.current().ON_EXPIRE
        ),
    )
