"""Which function looks for what an alert rule of each kind is about."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence

from token_allowance.alerts import budgets
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
}
OVERS: dict[str, Over] = {
    AlertRule.Kinds.BUDGET: budgets.over,
}
