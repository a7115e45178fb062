"""An alert is written once, in one transaction with what it looked like and with its messages."""

from __future__ import annotations

import datetime as dt

from django.db import transaction
from django.db.models import F

from token_allowance.alerts import snapshots
from token_allowance.alerts.finding import Finding
from token_allowance.channels import outbox
from token_allowance.models import Alert, AlertRule, Delivery

TITLE_LENGTH = 300
COPIED = ("tenant", "user", "session", "feature", "model", "value", "threshold", "unit")


def fire(rule: AlertRule, finding: Finding, now: dt.datetime, alias: str) -> bool:
    """Write the alert and its deliveries, unless it was told before; whether it was written.

    The rule's row is locked meanwhile: of processes that have found rungs of one budget at the
    same time, the one that comes later sees what the others told (cases C83, C84).
    """
    if told(rule, finding, alias):
        return False
    snapshot = snapshots.taken(finding, now, alias)
    with transaction.atomic(using=alias):
        # An update, because it is what SQLite waits for; a transaction that begins with a read may
        # not write after somebody else has.
        if not AlertRule.objects.using(alias).filter(pk=rule.pk).update(name=F("name")):
            return False
        if told(rule, finding, alias):
            return False
        alert = Alert.objects.using(alias).create(
            rule=rule,
            target=finding.target,
            window=finding.window,
            rung=finding.rung,
            amount=finding.amount,
            severity=finding.severity or rule.severity,
            title=finding.title[:TITLE_LENGTH],
            snapshot=snapshot,
            fired_at=now,
            seen_at=now,
            **{name: getattr(finding, name) for name in COPIED},
            **_muted(rule, finding, now, alias),
        )
        outbox.tell(alert, Delivery.Events.FIRED, now)
    return True


def told(rule: AlertRule, finding: Finding, alias: str) -> bool:
    """Of a window, a rung is told again only above every amount for which it, or a higher one,
    was told (protocol 16); without a window, only after it was over."""
    same = Alert.objects.using(alias).filter(
        rule=rule, target=finding.target, window=finding.window
    )
    if not finding.window:
        return same.filter(resolved_at=None).exists()
    return same.filter(rung__gte=finding.rung, amount__gte=finding.amount).exists()


def _muted(rule: AlertRule, finding: Finding, now: dt.datetime, alias: str) -> dict[str, object]:
    """Who has muted this rule and target, and until when: a new alert is muted as well."""
    names = ("muted_until", "muted_by", "mute_reason")
    muted = Alert.objects.using(alias).filter(rule=rule, target=finding.target, muted_until__gt=now)
    return muted.order_by("-muted_until").values(*names).first() or {}
