"""Alerts that are over."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable

from django.db import transaction

from token_allowance.alerts import kinds
from token_allowance.channels import outbox
from token_allowance.models import Alert, AlertRule, Delivery

#: What comes and goes is one alert: only what was not found for so long is over.
QUIET = dt.timedelta(minutes=5)


def resolve(
    rule: AlertRule, found: Collection[tuple[str, str]], now: dt.datetime, alias: str
) -> int:
    """Note which of the rule's alerts are over, and say so where it was told; how many are.

    ``found`` are the targets and windows of this evaluation. An alert of a window ends in silence:
    that the window began anew is no news, but a budget that had refused calls says so.
    """
    alerts = list(Alert.objects.using(alias).filter(rule=rule, resolved_at=None).order_by("id"))
    if not alerts:
        return 0
    if rule.kind in kinds.OVERS:
        ended = list(kinds.OVERS[rule.kind](alerts, now))
    else:
        seen = [alert.pk for alert in alerts if (alert.target, alert.window) in found]
        Alert.objects.using(alias).filter(pk__in=seen).update(seen_at=now)
        ended = _quiet(alerts, set(seen), now)
    for alert, loud in ended:
        _end(rule, alert, loud, now, alias)
    return len(ended)


def _quiet(
    alerts: Iterable[Alert], seen: Collection[int], now: dt.datetime
) -> list[tuple[Alert, bool]]:
    quiet = [a for a in alerts if a.pk not in seen and now - a.seen_at >= QUIET]
    return [(alert, not alert.window) for alert in quiet]


def _end(rule: AlertRule, alert: Alert, loud: bool, now: dt.datetime, alias: str) -> None:
    with transaction.atomic(using=alias):
        open_ = Alert.objects.using(alias).filter(pk=alert.pk, resolved_at=None)
        if open_.update(resolved_at=now) and loud:
            alert.resolved_at, alert.rule = now, rule
            outbox.tell(alert, Delivery.Events.RESOLVED, now)
