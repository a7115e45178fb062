"""Which function looks for what an alert rule of each kind is about."""

from __future__ import annotations

import datetime as dt
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence

from token_allowance.alerts import (
    budgets,
    drill_overdue,
    estimated,
    expired,
    forecast,
    requests_per_user,
    silent,
    spend_rate,
    store_down,
    switch_events,
    tokens_per_request,
    unpriced,
)
from token_allowance.alerts.finding import Finding
from token_allowance.models import Alert, AlertRule

#: What is found is told one by one, while the function runs: a generator goes on after ``yield``
#: when its finding is written down. Whatever it raises is logged, and resolves nothing.
Find = Callable[[AlertRule, dt.datetime], Iterable[Finding]]
#: Which of the open alerts are over, and whether that is worth a message. Kinds without one: those
#: that are not found any more.
Over = Callable[[Sequence[Alert], dt.datetime], Iterable[tuple[Alert, bool]]]

FINDS: dict[str, Find] = {
    AlertRule.Kinds.BUDGET: budgets.find,
    AlertRule.Kinds.FORECAST: forecast.find,
    AlertRule.Kinds.SPEND_RATE: spend_rate.find,
    AlertRule.Kinds.TOKENS_PER_REQUEST: tokens_per_request.find,
    AlertRule.Kinds.REQUESTS_PER_USER: requests_per_user.find,
    AlertRule.Kinds.UNPRICED: unpriced.find,
    AlertRule.Kinds.ESTIMATED: estimated.find,
    AlertRule.Kinds.STORE_DOWN: store_down.find,
    AlertRule.Kinds.EXPIRED: expired.find,
    AlertRule.Kinds.DRILL_OVERDUE: drill_overdue.find,
    AlertRule.Kinds.SILENT: silent.find,
    AlertRule.Kinds.SWITCH: switch_events.find,
}
OVERS: dict[str, Over] = {
    AlertRule.Kinds.BUDGET: budgets.over,
}


def described(kind: str) -> str:
    """What a rule of this kind is about, and how it reads its numbers; empty if nobody looks."""
    find = FINDS.get(kind)
    return inspect.cleandoc(sys.modules[find.__module__].__doc__ or "") if find else ""
