"""A channel that does not work is an alert too: in the admin, because it cannot be sent."""

from __future__ import annotations

import datetime as dt

from token_allowance.models import Alert, AlertRule, Channel, Severity

KIND = AlertRule.Kinds.CHANNEL


def target(channel: Channel) -> str:
    return f"channel={channel.pk}"


def tell(channel: Channel, error: str, now: dt.datetime, using: str) -> None:
    """Say that messages to this channel are given up; once until one arrives again."""
    rule = AlertRule.objects.using(using).filter(kind=KIND).order_by("id").first()
    if rule is None:
        rule, _ = AlertRule.objects.using(using).get_or_create(
            name=str(KIND.label).capitalize(), defaults={"kind": KIND, "severity": Severity.WARNING}
        )
    if not rule.is_active:
        return
    alert = Alert(
        rule=rule,
        target=target(channel),
        severity=rule.severity,
        title=f"Alerts do not reach channel {channel.name}: {error}"[:300],
        snapshot={"channel": channel.pk, "error": error, "taken_at": now.isoformat()},
        fired_at=now,
    )
    Alert.objects.using(using).bulk_create([alert], ignore_conflicts=True)


def over(channel: Channel, now: dt.datetime, using: str) -> None:
    """A message has arrived."""
    Alert.objects.using(using).filter(
        rule__kind=KIND, target=target(channel), resolved_at=None
    ).update(resolved_at=now)
