"""A kill switch was engaged or released.

``minutes``: how long ago at most; each is told once, and what is older than this when the rule
begins, or while nobody looked, is not.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from token_allowance import conf, drill_record
from token_allowance.alerts import telling
from token_allowance.alerts.finding import Finding
from token_allowance.limits import zone
from token_allowance.models import AlertRule, Severity, SwitchEvent

MINUTES = 60
MOST = 100
NAMES = ("tenant", "user", "feature", "model")
STATES = {"engaged": "stopped", "released": "ok"}


def find(rule: AlertRule, now: dt.datetime) -> Iterator[Finding]:
    since = now - dt.timedelta(minutes=rule.minutes or MINUTES)
    events = SwitchEvent.objects.using(telling.alias_of(rule)).filter(at__gte=since, at__lte=now)
    newest = list(events.select_related("switch").order_by("-pk")[:MOST])
    for event in reversed(newest):  # what was released last must be the last thing that is told
        yield _finding(event, now)


def _finding(event: SwitchEvent, now: dt.datetime) -> Finding:
    values = {name: getattr(event.switch, name) for name in NAMES}
    named = telling.short(" / ".join(filter(None, values.values())) or "everything")
    part = f" ({event.percent} % of its callers)" if event.percent < 100 else ""
    why = f": {telling.short(event.reason.rstrip('.'))}." if event.reason else "."
    return Finding(
        target=telling.scope(values),
        window=f"event {event.pk}",
        title=f"{named}{part} by {event.by}{why}{_end(event, now)}",
        severity=Severity.INFO if drill_record.is_reason(event.reason) else None,
        details={
            "state_after": STATES[event.action],
            "by": event.by,
            "reason": event.reason,
            "percent_stopped": event.percent,
            "cuts_streams": event.cuts_streams,
            "at": event.at.isoformat(),
            "ends_at": event.ends_at and event.ends_at.isoformat(),
        },
        **values,
    )


def _end(event: SwitchEvent, now: dt.datetime) -> str:
    if event.ends_at is None or event.action != SwitchEvent.Actions.ENGAGED:
        return ""
    here: Any = zone(conf.current().zone_name)
    local = event.ends_at.astimezone(here)
    shown = "%H:%M" if local.date() == now.astimezone(here).date() else "%a %d %b %H:%M"
    return f" Ends {local:{shown}}."
