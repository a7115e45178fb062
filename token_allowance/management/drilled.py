"""The last drill of the kill switch in a sentence, and whether that is well."""

from __future__ import annotations

import datetime as dt

from token_allowance import conf, drill_record
from token_allowance.models import Drill

COMMAND = "manage.py allowance drill --tenant KEY"


def finding(now: dt.datetime) -> tuple[str, str]:
    """``ok``, ``warning`` or ``problem``, and the sentence."""
    drill = drill_record.last()
    if drill is None:
        return "warning", f"The kill switch was never drilled: {COMMAND}."
    text = said(drill)
    if not drill.passed:
        return "problem", f"{text}: {drill.error}."
    if drill_record.overdue(now):
        days = conf.current().drill["overdue_days"]
        return "warning", f"{text}; that is more than {days:g} days ago: {COMMAND}."
    return "ok", f"{text}."


def said(drill: Drill) -> str:
    target = ", ".join(f"{n} {v}" for n in ("tenant", "feature") if (v := getattr(drill, n)))
    effect = "" if drill.effect_ms is None else f", first refusal after {drill.effect_ms:,} ms"
    result = "passed" if drill.passed else "failed"
    return f"The drill of {drill.started_at:%Y-%m-%d %H:%M %Z} ({target}) {result}{effect}"
