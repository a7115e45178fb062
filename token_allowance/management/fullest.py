"""The budgets that are nearest to their end, of those who have spent lately."""

from __future__ import annotations

import datetime as dt

from django.db.models import Sum

from token_allowance import conf, money, policy
from token_allowance.limits import Attribution, Budget, Unit
from token_allowance.models import HourlySpend, Reservation
from token_allowance.stores.base import Room

HOURS = 24
SPENDERS = 200
NEWEST = 300
COLUMNS = ("tenant", "user", "feature", "model")


def rooms(now: dt.datetime) -> list[Room]:
    """Used budgets, the fullest first. Raises StoreUnavailable."""
    decided = policy.confirmed()
    found: dict[str, Budget] = {}
    for tenant, user, feature, model in _spenders(now):
        who = Attribution(tenant=tenant, user=user, feature=feature)
        for budget in decided.opened(who, model, now).budgets:
            if budget.enforced:
                found[budget.key] = budget
    used = [room for room in conf.store().usage(list(found.values())) if room.used + room.reserved]
    return sorted(used, key=percent, reverse=True)


def percent(room: Room) -> int:
    return 100 * room.used // max(1, room.budget.limit.amount)


def line(room: Room) -> str:
    """``user ana of tenant acme, daily cost: $0.49 of $0.50 used (98 %), $0.08 reserved``"""
    limit = room.budget.limit
    whose = ", ".join(f"{name} {value}" for name, value in room.budget.values) or "all calls"
    used, amount = _said(room.used, limit.unit), _said(limit.amount, limit.unit)
    held = f", {_said(room.reserved, limit.unit)} reserved" if room.reserved else ""
    told = " (observed)" if limit.observe else ""
    adjective = f"{limit.adjective} {limit.unit}{told}"
    return f"{whose}, {adjective}: {used} of {amount} used ({percent(room)} %){held}"


def _spenders(now: dt.datetime) -> set[tuple[str, str, str, str]]:
    """The biggest of a day, and the newest: the roll-ups may be a little behind."""
    recent = HourlySpend.objects.filter(starts_at__gte=now - dt.timedelta(hours=HOURS))
    biggest = recent.order_by().values_list(*COLUMNS).annotate(spent=Sum("cost_micros"))
    newest = Reservation.objects.order_by("-id").values_list(*COLUMNS)[:NEWEST]
    return {row[:4] for row in biggest.order_by("-spent")[:SPENDERS]} | set(newest)


def _said(amount: int, unit: Unit) -> str:
    return money.format_usd(amount) if unit is Unit.COST else f"{amount:,}"
