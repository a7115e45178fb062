"""Budgets that have reached a rung of their ladder."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from token_allowance.alerts.finding import Finding
from token_allowance.models import AlertRule


def find(rule: AlertRule, now: dt.datetime) -> Iterator[Finding]:
    yield from ()
