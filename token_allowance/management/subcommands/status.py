"""``status``: what is in force now."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import OutputWrapper
from django.db.models import Q, Sum
from django.utils import timezone

from token_allowance import conf
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import (
    DeadLetter,
    Limit,
    PendingSettlement,
    PolicyVersion,
    Reservation,
    Switch,
)

HELP = "Show engaged switches, the mode, the store and the policy version."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(out: OutputWrapper, options: dict[str, Any]) -> None:
    now = timezone.now()
    settings = conf.current()
    note = " (nothing is refused)" if settings.MODE == "observe" else ""
    out.write(f"Mode: {settings.MODE}{note}")
    out.write(f"Store: {type(conf.store()).__module__}.{type(conf.store()).__name__}")
    version = PolicyVersion.objects.aggregate(total=Sum("number"))["total"] or 0
    out.write(f"Policy version: {version}")
    unexpired = Q(expires_at=None) | Q(expires_at__gt=now)
    out.write(f"Active limits: {Limit.objects.filter(unexpired, is_active=True).count():,}")
    in_flight = Reservation.objects.filter(state=Reservation.States.RESERVED)
    late = in_flight.filter(expires_at__lte=now).count()
    out.write(f"Calls in flight: {in_flight.count() - late:,}, overdue: {late:,}")
    if ledger := outbox():
        out.write(f"Ledger: {ledger}")
    engaged = Switch.objects.filter(Q(ends_at=None) | Q(ends_at__gt=now), released_at=None)
    out.write(f"Engaged switches: {len(engaged)}")
    for switch in engaged:
        until = f"until {switch.ends_at:%Y-%m-%d %H:%M %Z}" if switch.ends_at else "until released"
        since = f"{switch.engaged_at:%Y-%m-%d %H:%M %Z}"
        out.write(f"  {switch}: by {switch.by} since {since}, {until}: {switch.reason}")


def outbox() -> str:
    """How far the ledger is behind the store, in words; nothing if the store writes it itself."""
    try:
        behind = conf.store().behind_seconds()
    except StoreUnavailable as error:
        return f"the store cannot be asked: {error}"
    if behind is None:
        return ""
    return (
        f"{behind:,.1f} seconds behind the store, events set aside: "
        f"{DeadLetter.objects.count():,}, unapplied settlements: "
        f"{PendingSettlement.objects.count():,}"
    )
