"""The kill switch was not drilled lately, or its last drill failed: nobody knows whether it works.

How often is a setting, ``DRILL``; the rule's ``threshold`` and ``minutes`` are not looked at.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from token_allowance import drill_record
from token_allowance.alerts import telling
from token_allowance.alerts.finding import GLOBAL, Finding
from token_allowance.models import AlertRule, Drill

REMEDY = "Run manage.py allowance drill."


def find(rule: AlertRule, now: dt.datetime) -> Iterator[Finding]:
    drill, late = drill_record.last(), drill_record.overdue(now)
    if late or (drill is not None and not drill.passed):
        title = _title(drill, now)
        yield Finding(
            target=GLOBAL,
            title=title,
            tenant=drill.tenant if drill else "",
            feature=drill.feature if drill else "",
            details=telling.details(sentence=f"{title}. {REMEDY}"),
        )


def _title(drill: Drill | None, now: dt.datetime) -> str:
    if drill is None:
        return "the kill switch was never drilled"
    days = telling.plural((now - drill.started_at).days, "day")
    if not drill.passed:
        return f"the last drill of the kill switch, {days} ago, failed"
    return f"the kill switch was drilled {days} ago"
