"""Models that are used without a price: their cost is not counted, or by the fallback price.

``threshold``: calls, ``minutes``: in how long.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from token_allowance.alerts import flagged, telling
from token_allowance.alerts.finding import Finding
from token_allowance.models import AlertRule
from token_allowance.prices import matching

MINUTES = 60
MOST = 20  # findings at a time
REMEDY = "Add a price in the admin, or run manage.py allowance sync-prices."


def find(rule: AlertRule, now: dt.datetime) -> Iterator[Finding]:
    """Nothing about a model that has got its price meanwhile."""
    minutes, least = rule.minutes or MINUTES, rule.threshold or 1
    since, alias = now - dt.timedelta(minutes=minutes), telling.alias_of(rule)
    for one in flagged.models(alias, since, now, ("unpriced",))[:MOST]:
        if one.flagged_calls >= least and not matching.priced(one.model, one.provider, alias=alias):
            yield _finding(one, int(least), since, minutes)


def _finding(one: flagged.Flagged, least: int, since: dt.datetime, minutes: int) -> Finding:
    free, calls = one.costless_calls, telling.plural(one.flagged_calls, "call")
    counted = "its cost is not counted" if free else "the fallback price is charged"
    return Finding(
        target=telling.scope({"provider": one.provider, "model": one.model}),
        title=f"{telling.short(one.name)} has no price: {calls} in {minutes} minutes, {counted}",
        model=one.model,
        value=one.flagged_calls,
        threshold=least,
        unit="calls",
        since=since,
        details=telling.details(
            provider=one.provider,
            minutes=minutes,
            calls_without_cost=free,
            calls_by_fallback_price=one.flagged_calls - free,
            sentence=f"{telling.short(one.name)} has no price, {counted}. {REMEDY}",
        ),
    )
