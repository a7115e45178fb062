"""Too much of a model's cost is charged by estimate, because its usage was not reported.

``threshold``: the share of the money, 0.2 for a fifth; ``minutes``: of how long.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal

from token_allowance.alerts import flagged, telling
from token_allowance.alerts.finding import Finding
from token_allowance.models import AlertRule

SHARE = Decimal("0.2")
MINUTES = 60
LEAST_CALLS = 20
STAY = 2  # what has begun is over below the share divided by this


def find(rule: AlertRule, now: dt.datetime) -> Iterator[Finding]:
    minutes, share = rule.minutes or MINUTES, rule.threshold or SHARE
    since = now - dt.timedelta(minutes=minutes)
    begun = telling.begun(rule)
    for one in flagged.models(telling.alias_of(rule), since, now, flagged.ESTIMATED):
        target = telling.scope({"provider": one.provider, "model": one.model})
        least = share / STAY if target in begun else share
        if one.calls >= LEAST_CALLS and one.flagged_micros > least * one.micros:
            yield _finding(target, one, share, since, minutes)


def _finding(
    target: str, one: flagged.Flagged, share: Decimal, since: dt.datetime, minutes: int
) -> Finding:
    percent = 100 * one.flagged_micros // one.micros
    estimated, all_of_it = telling.usd(one.flagged_micros), telling.usd(one.micros)
    return Finding(
        target=target,
        title=f"{percent} % of the cost of {telling.short(one.name)} is charged by "
        f"estimate: {estimated} of {all_of_it} in {minutes} minutes",
        model=one.model,
        value=percent,
        threshold=int(100 * share),
        unit="percent",
        since=since,
        details=telling.details(
            provider=one.provider,
            minutes=minutes,
            calls=one.calls,
            estimated_calls=one.flagged_calls,
            estimated_micros=one.flagged_micros,
            micros=one.micros,
        ),
    )
