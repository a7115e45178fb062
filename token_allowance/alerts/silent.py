"""The ledger is silent, although at this time of the week there are always calls.

``threshold``: how many calls must be usual for their absence to mean something; ``minutes``: for
how long there were none. Refused calls are a sign of life too.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence

from token_allowance import conf
from token_allowance.alerts import quarters, telling
from token_allowance.alerts.finding import GLOBAL, Finding
from token_allowance.alerts.history import History
from token_allowance.alerts.sums import NONE, Sums
from token_allowance.limits import zone
from token_allowance.models import AlertRule, Refusal, Reservation

LEAST_CALLS = 20
MINUTES = 15
LEAST_WEEKS = 2


def find(rule: AlertRule, now: dt.datetime) -> Iterator[Finding]:
    minutes, alias = max(MINUTES, rule.minutes or 0), telling.alias_of(rule)
    since = now - dt.timedelta(minutes=minutes)
    newest = Reservation.objects.using(alias).filter(created_at__lte=now).order_by("-created_at")
    last = newest.values_list("created_at", flat=True).first()
    if last is None or last >= since:
        return
    refused = Refusal.objects.using(alias).filter(starts_at__gte=since - dt.timedelta(minutes=1))
    if refused.exists():
        return
    history = History(alias)
    around = quarters.same_time(since, now, zone(conf.current().zone_name))
    weeks = quarters.complete(around, history.oldest)
    found = history.quarters(weeks, ()).get((), {}) if weeks else {}
    calls = expected([[found.get(q, NONE) for q in week] for week in weeks]) * minutes // MINUTES
    if calls >= (LEAST_CALLS if rule.threshold is None else rule.threshold):
        yield _finding(calls, last, minutes)


def expected(weeks: Sequence[Sequence[Sums]]) -> int:
    """The fewest calls of a quarter around this time, in the second lowest week of two or more."""
    lowest = sorted(min(quarter.calls for quarter in week) for week in weeks)
    return lowest[1 if len(lowest) > LEAST_WEEKS else 0] if len(lowest) >= LEAST_WEEKS else 0


def _finding(calls: int, last: dt.datetime, minutes: int) -> Finding:
    local = last.astimezone(zone(conf.current().zone_name))
    return Finding(
        target=GLOBAL,
        title=f"No model call since {local:%H:%M %Z}; at this time of the week at least "
        f"{calls:,} are usual in {minutes} minutes",
        value=0,
        threshold=calls,
        unit="calls",
        since=last,
        details=telling.details(minutes=minutes, last_call_at=last.isoformat()),
    )
