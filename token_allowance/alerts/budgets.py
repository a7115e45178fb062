"""Budgets that have reached a rung of their ladder: 70, 90 and 100 percent, or what a limit says.

By settled spend, in whole numbers. The rule's severity is not looked at: below 90 percent it is
information, below 100 a warning. Neither ``threshold`` nor ``minutes`` is.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence

from token_allowance import conf, marks, policy, spend
from token_allowance.alerts import candidates, rungs, standing
from token_allowance.alerts.finding import Finding
from token_allowance.alerts.rungs import Reached
from token_allowance.channels import outbox
from token_allowance.counters import budget_of
from token_allowance.limits import Budget
from token_allowance.models import Alert, AlertRule
from token_allowance.stores.base import Room
from token_allowance.windows import Window

JOB = "alerts.budgets"
AT_ONCE = 500
BLOCKED = 100


def find(rule: AlertRule, now: dt.datetime) -> Iterator[Finding]:
    """The highest rung that each budget has reached, of those that have moved since last time.

    And, after limits have changed or ended, of all that calls have been counted in. Killed half
    way, it looks at the same budgets again.
    """
    alias, job = outbox.alias(), f"{JOB}.{rule.pk}"
    number = candidates.version(alias)
    mark = marks.read(alias, job)
    decided = policy.confirmed()
    keys = candidates.moved(alias, marks.since(mark, now) or now - marks.OVERLAP)
    budgets = standing.named(decided, keys, now)
    if number != mark.number or candidates.ended(alias, mark.at, now):
        spend.fold(now)
        values = candidates.near_a_rung(alias, now)
        budgets |= standing.of_values(decided, values, now)
        budgets |= standing.named(decided, candidates.adjusted(alias), now)
    for rooms in _rooms(budgets):
        yield from _news(rule, [r for room in rooms if (r := rungs.reached(room, now))], now, alias)
    marks.move(alias, job, at=marks.following(mark, now), number=number)


def over(alerts: Sequence[Alert], now: dt.datetime) -> Iterator[tuple[Alert, bool]]:
    """The alerts whose window has ended, or whose budget is below their rung again.

    Those who were told that calls are refused are told that it is over: once for each budget.
    """
    named = {alert.target: budget_of(alert.target, 0, now) for alert in alerts}
    open_keys = {b.key for b in named.values() if b.window.end is None or now < b.window.end}
    standing_now = standing.named(policy.confirmed(), open_keys, now)
    levels = {room.budget.key: room for rooms in _rooms(standing_now) for room in rooms}
    ended = [a for a in alerts if _ended(a, levels.get(named[a.target].key))]
    loudest = {a.target: a.pk for a in sorted(ended, key=lambda a: (a.rung, a.pk))}
    for alert in ended:
        lasting = named[alert.target].limit.window is not Window.MINUTE
        yield alert, lasting and alert.rung >= BLOCKED and loudest[alert.target] == alert.pk


def _rooms(budgets: Mapping[str, Budget]) -> Iterator[list[Room]]:
    """The figures of these budgets, some at a time."""
    ordered = [budgets[key] for key in sorted(budgets)]
    for start in range(0, len(ordered), AT_ONCE):
        yield conf.store().usage(ordered[start : start + AT_ONCE])


def _ended(alert: Alert, room: Room | None) -> bool:
    """Without figures: its window has ended, or there is no such limit any more."""
    return room is None or not rungs.is_at(room, alert.rung)


def _news(
    rule: AlertRule, found: Collection[Reached], now: dt.datetime, alias: str
) -> Iterator[Finding]:
    """Those that were not told: it is checked again where they are written."""
    targets = [one.target for one in found]
    alerts = Alert.objects.using(alias).filter(rule=rule, target__in=targets)
    told: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for target, window, *rung in alerts.order_by().values_list(
        "target", "window", "rung", "amount"
    ):
        told.setdefault((target, window), []).append((rung[0], rung[1]))
    for one in found:
        before = told.get((one.target, one.window), [])
        if not any(rung >= one.rung and amount >= one.amount for rung, amount in before):
            yield rungs.finding(one, max((rung for rung, _ in before), default=0), now, alias)
