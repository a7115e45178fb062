"""``status``: what is in force now."""

from __future__ import annotations

import argparse
import datetime as dt
from typing import Any

from django.core.management.base import OutputWrapper
from django.db.models import Q, Sum
from django.utils import timezone

from token_allowance import conf
from token_allowance.exceptions import StoreUnavailable
from token_allowance.management import drilled, fullest, targets, told
from token_allowance.models import (
    DeadLetter,
    Limit,
    PendingSettlement,
    PolicyVersion,
    Refusal,
    Reservation,
    Tenant,
)

HELP = "Show what is stopped, refused and nearly spent, the mode, and whether all is well."
REFUSED_MINUTES = 15
SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(out: OutputWrapper, options: dict[str, Any]) -> None:
    now = timezone.now()
    switches(out)
    refused(out, now)
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
    budgets(out, now)
    out.write(f"Drill: {drilled.finding(now)[1]}")
    out.write(f"Alerts: {told.summary()}")


def switches(out: OutputWrapper) -> None:
    """What is stopped, before anything else."""
    engaged = list(targets.running())
    out.write(f"Engaged switches: {len(engaged)}")
    for switch in engaged:
        out.write(f"  {targets.line(switch)}")
        out.write(f"    to undo: {targets.command('resume', switch)}")
    inactive = Tenant.objects.filter(is_active=False).order_by("key")
    keys = list(inactive.values_list("key", flat=True)[: SHOWN + 1])
    if keys:
        more = ", …" if len(keys) > SHOWN else ""
        out.write(f"Tenants that are not active, so stopped: {', '.join(keys[:SHOWN])}{more}")


def refused(out: OutputWrapper, now: dt.datetime) -> None:
    """What was refused in the last minutes, by code."""
    recent = Refusal.objects.filter(starts_at__gte=now - dt.timedelta(minutes=REFUSED_MINUTES))
    codes = recent.order_by().values_list("code").annotate(Sum("calls"))
    found = sorted(codes, key=lambda row: (-row[1], row[0]))
    total = sum(calls for _, calls in found)
    out.write(f"Refused in {REFUSED_MINUTES} minutes: {total:,}")
    for code, calls in found[:SHOWN]:
        out.write(f"  {calls:,} {code}")


def budgets(out: OutputWrapper, now: dt.datetime) -> None:
    """The fullest budgets of those who have spent lately."""
    try:
        found = fullest.rooms(now)
    except StoreUnavailable as error:
        out.write(f"Budgets: they cannot be read: {error}")
        return
    out.write(f"Fullest budgets: {'' if found else 'none is used'}".rstrip())
    for room in found[:SHOWN]:
        out.write(f"  {fullest.line(room)}")


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
