"""Requests of a feature far longer than is usual.

``threshold``: how many standard deviations away from the usual, of logarithms. ``minutes``: whose
calls are compared. With the quarters of the day before, and of this time of the last four weeks:
what stays longer for most of a day is the new usual.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal

from token_allowance import conf
from token_allowance.alerts import lengths, quarters, telling
from token_allowance.alerts.finding import Finding
from token_allowance.alerts.history import History
from token_allowance.alerts.sums import Target, summed
from token_allowance.limits import zone
from token_allowance.models import AlertRule

THRESHOLD = Decimal(4)
MINUTES = 15
STAY = 2  # what has begun is over below the threshold divided by this


def find(rule: AlertRule, now: dt.datetime) -> Iterator[Finding]:
    minutes = rule.minutes or MINUTES
    since = now - dt.timedelta(minutes=minutes)
    history = History(telling.alias_of(rule))
    found = summed(history.recent(since, now))
    recent = {
        target.feature: sums
        for target, sums in found.items()
        if target.feature and sums.calls >= lengths.LEAST_CALLS
    }
    if not recent:
        return
    last = quarters.number(since)
    around = quarters.same_time(since, now, zone(conf.current().zone_name))
    before = [range(last - quarters.DAY, last), *around]
    past = history.quarters(before, ("feature",), feature__in=sorted(recent))
    begun = telling.begun(rule)
    for feature, sums in sorted(recent.items()):
        length = lengths.judge(feature, sums, list(past[feature,].values()))
        z = least(rule, going_on=str(Target(feature=feature)) in begun)
        if length is not None and length.z >= z:
            yield _finding(length, z, since, minutes)


def least(rule: AlertRule, *, going_on: bool) -> Decimal:
    threshold = THRESHOLD if rule.threshold is None else rule.threshold
    return threshold / STAY if going_on else threshold


def _finding(
    length: lengths.Length, threshold: Decimal, since: dt.datetime, minutes: int
) -> Finding:
    name = telling.short(length.feature)
    times = length.tokens / length.usual_tokens if length.usual_tokens else 0
    return Finding(
        target=str(Target(feature=length.feature)),
        title=f"{name} uses {length.tokens:,} tokens a call, {times:.1f}x usual",
        feature=length.feature,
        value=length.tokens,
        threshold=length.usual_tokens,
        unit="tokens",
        since=since,
        details=telling.details(
            minutes=minutes,
            calls=length.calls,
            usual_tokens=length.usual_tokens,
            z=f"{length.z:.1f}",
            least_z=f"{threshold:f}",
            sentence=f"The {length.calls:,} calls of {name} in {minutes} minutes used "
            f"{length.tokens:,} tokens each, where {length.usual_tokens:,} are usual "
            f"({length.z:.1f} standard deviations).",
        ),
    )
