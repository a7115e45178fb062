"""What people do about an alert."""

from __future__ import annotations

import datetime as dt

from django.db.models import Q
from django.utils import timezone

from token_allowance.models import Alert

MUTE_MOST = dt.timedelta(hours=24)


def acknowledge(alert: Alert, by: str) -> bool:
    """Say that somebody looks after it; False if somebody did before."""
    alerts = Alert.objects.using(alert._state.db).filter(pk=alert.pk, acknowledged_at=None)
    done = alerts.update(acknowledged_at=timezone.now(), acknowledged_by=str(by)[:200])
    alert.refresh_from_db()
    return bool(done)


def mute(alert: Alert, until: dt.datetime, by: str, reason: str) -> None:
    """Send nothing more about this rule and target until then: alerts are still written down.

    ValueError without a reason, for a moment that has passed, or one more than 24 hours away.
    """
    now = timezone.now()
    if not now < until <= now + MUTE_MOST:
        raise ValueError("an alert is muted for 24 hours at most")
    if not str(reason).strip():
        raise ValueError("to mute an alert needs a reason")
    same = Q(rule=alert.rule_id, target=alert.target, resolved_at=None)
    Alert.objects.using(alert._state.db).filter(Q(pk=alert.pk) | same).update(
        muted_until=until, muted_by=str(by)[:200], mute_reason=str(reason)[:500]
    )
    alert.refresh_from_db()


def unmute(alert: Alert) -> None:
    """Tell again of this rule and target."""
    same = Alert.objects.using(alert._state.db).filter(rule=alert.rule_id, target=alert.target)
    same.update(muted_until=None)
    alert.refresh_from_db()
