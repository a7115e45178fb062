"""The ladder of one budget: which rung it stands on, and how that is told."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Sum

from token_allowance import conf, keys, levels, policy, rolling
from token_allowance.alerts.finding import Finding
from token_allowance.channels import figures
from token_allowance.limits import DIMENSIONS, Budget, microseconds
from token_allowance.models import DegradeRule, Refusal, Severity
from token_allowance.stores.base import Room
from token_allowance.windows import Window

WARNING, BLOCKED = 90, 100  # from which rung on it is a warning, and critical
LONGEST_NAME = 60
TAGS = {"blocked": "BLOCKED", "observing": "OBSERVED"}
HOUR_FORMAT = "%Y%m%dT%H"
SECOND = dt.timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Reached:
    """A budget that has reached a rung. It is told once for ``target`` in ``window``."""

    room: Room
    rung: int
    target: str
    window: str

    @property
    def amount(self) -> int:
        return self.room.budget.limit.amount


def reached(room: Room, now: dt.datetime) -> Reached | None:
    """The highest rung that is reached; None: none is."""
    rungs = [rung for rung in room.budget.limit.notify_at if is_at(room, rung)]
    if not rungs:
        return None
    return Reached(room, max(rungs), *period(room.budget, now))


def is_at(room: Room, rung: int) -> bool:
    """Of a limit that admits nothing, nothing used is no news."""
    return room.used > 0 and room.used >= levels.reached_from(room.budget.limit.amount, rung)


def period(budget: Budget, now: dt.datetime) -> tuple[str, str]:
    """(target, window): each rung is told once for the two.

    A window that rolls never begins anew: it is told once in each stretch of its length. One of a
    minute is told once an hour.
    """
    limit, start = budget.limit, budget.window.start
    if limit.window is Window.ROLLING:
        return budget.key, str(microseconds(now) // (limit.rolling_seconds * 1_000_000))
    if limit.window is Window.MINUTE and start is not None:
        whole = budget.key[: -len(keys.written(start))] + keys.OPEN
        return whole, start.strftime(HOUR_FORMAT)
    return budget.key, keys.written(start)


def finding(found: Reached, before: int, now: dt.datetime, alias: str) -> Finding:
    """The alert; ``before`` is the highest rung of this window that was told."""
    room, limit = found.room, found.room.budget.limit
    state = _state(room, room.used, alias)
    forecast = _forecast(room, now)
    return Finding(
        target=found.target,
        window=found.window,
        rung=found.rung,
        amount=found.amount,
        severity=severity(found.rung),
        title=f"[{TAGS.get(state, f'{found.rung} %')}] {_title(room, state, forecast)}",
        value=room.used,
        threshold=levels.reached_from(limit.amount, found.rung),
        unit=limit.unit.value,
        details={
            "state_before": _state(room, levels.reached_from(limit.amount, before), alias)
            if before
            else "ok",
            "state_after": state,
            "used": room.used,
            "reserved": room.reserved,
            "amount": limit.amount,
            "window": limit.adjective,
            "resets_at": _iso(room.resets_at()),
            "forecast_at": _iso(forecast),
            "limit": limit.id,
            "next": min((r for r in limit.notify_at if r > found.rung), default=None),
            **_refused(room.budget, now, alias),
        },
        **_named(room.budget),
    )


def severity(rung: int) -> str:
    if rung >= BLOCKED:
        return Severity.CRITICAL
    return Severity.WARNING if rung >= WARNING else Severity.INFO


def _named(budget: Budget) -> Mapping[str, Any]:
    return {name: value for name, value in budget.values if name in DIMENSIONS}


def _state(room: Room, used: int, alias: str) -> str:
    """What happens to new calls at this level."""
    limit = room.budget.limit
    if used >= limit.stop_amount:
        tenant = policy.current().tenant(dict(room.budget.values).get("tenant", ""))
        observing = limit.observe or tenant.observe or conf.current().MODE == "observe"
        return "observing" if observing else "blocked"
    degrades = limit.degrade_amount
    rules = DegradeRule.objects.using(alias).filter(is_active=True)
    if degrades is not None and used >= degrades and rules.exists():
        return "degraded"
    return "warning"


def _title(room: Room, state: str, forecast: dt.datetime | None) -> str:
    limit, unit = room.budget.limit, room.budget.limit.unit.value
    used = figures.amount_text(room.used, unit)
    amounts = f"{used} of {figures.amount_text(limit.amount, unit)}"
    who = whose(room.budget)
    if state in TAGS:
        return f"{who} reached its {limit.adjective} limit: {amounts}"
    pace = f"; at this pace spent {figures.moment(_iso(forecast))}" if forecast else ""
    return f"{who}: {amounts} used{pace}"


def whose(budget: Budget) -> str:
    """Whose budget it is: ``acme``, ``user u_1 of acme``, ``everyone together``."""
    named = {
        name: value if len(value) <= LONGEST_NAME else f"{value[: LONGEST_NAME - 1]}…"
        for name, value in budget.values
    }
    tenant = named.pop("tenant", "")
    words = [f"{name} {named[name]}" for name in reversed(DIMENSIONS) if name in named]
    return " of ".join([*words, *([tenant] if tenant else [])]) or "everyone together"


def _forecast(room: Room, now: dt.datetime) -> dt.datetime | None:
    """When the amount is used at the pace since the window began, if that is before it ends."""
    window, amount = room.budget.window, room.budget.limit.amount
    if room.used >= amount or window.start is None or room.budget.slice is not None:
        return None
    at = window.start + (now - window.start) // SECOND * amount // room.used * SECOND
    return at if now < at and window.contains(at) else None


def _refused(budget: Budget, now: dt.datetime, alias: str) -> dict[str, int]:
    """Calls that this budget has refused so far, and how many users made them."""
    rows = Refusal.objects.using(alias).filter(key=budget.key)
    if budget.slice is not None:
        rows = rows.filter(starts_at__gte=rolling.start(budget.limit.rolling_seconds, budget.slice))
    found = rows.aggregate(calls=Sum("calls", default=0), users=Count("user", distinct=True))
    return {"refused_calls": found["calls"], "refused_users": found["users"]}


def _iso(moment: dt.datetime | None) -> str | None:
    return moment.isoformat() if moment else None
