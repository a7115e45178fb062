"""Which function looks for what an alert rule of each kind is about."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable

from token_allowance.alerts import budgets
from token_allowance.alerts.finding import Finding
from token_allowance.models import AlertRule

#: What is found is told one by one, while the function runs: a generator goes on after ``yield``
#: when its finding is written down. Whatever it raises is logged, and resolves nothing.
Find = Callable[[AlertRule, dt.datetime], Iterable[Finding]]

FINDS: dict[str, Find] = {
    AlertRule.Kinds.BUDGET: budgets.find,
}
