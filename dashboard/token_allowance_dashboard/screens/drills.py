"""Drills: will stopping work the next time, and how fast?"""

from __future__ import annotations

import datetime as dt
import shlex

from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone
from django.views.decorators.http import require_safe

from token_allowance import conf
from token_allowance.management import drilled
from token_allowance.models import Drill
from token_allowance_dashboard import page
from token_allowance_dashboard.access import access, screen

SHOWN = 50
JUDGED = 20  # the last drills, for the slowest of twenty
COMMAND = ["python", "manage.py", "allowance", "drill"]
PER_MILLE = 950


@require_safe
@screen()
def drills(request: HttpRequest) -> HttpResponseBase:
    now, tenants = timezone.now(), access(request).tenants
    rows = Drill.objects.order_by("-started_at", "-id")
    if tenants is not None:
        rows = rows.filter(tenant__in=tenants)
    shown = list(rows[:SHOWN])
    context = {
        "rows": shown,
        "judged": JUDGED,
        "slowest": slowest([drill.effect_ms for drill in shown[:JUDGED] if drill.effect_ms]),
        "finding": _finding(shown, tenants, now),
        "overdue_days": conf.current().drill["overdue_days"],
        "commands": _commands(tenants),
    }
    question = "Will stopping work the next time, and how fast?"
    return page.show(request, "drills.html", context, title="Drills", question=question,
                     tab="switches")  # fmt: skip


def slowest(lengths_ms: list[int]) -> int | None:
    """The 95th percentile by nearest rank; None of nothing."""
    if not lengths_ms:
        return None
    return sorted(lengths_ms)[-(-len(lengths_ms) * PER_MILLE // 1000) - 1]


def _finding(
    shown: list[Drill], tenants: frozenset[str] | None, now: dt.datetime
) -> tuple[str, str]:
    """``ok``, ``warning`` or ``problem``, and the sentence, of these tenants alone."""
    if tenants is None:
        return drilled.finding(now)
    last = next((drill for drill in shown if drill.passed is not None), None)
    if last is None:
        return "warning", "The kill switch was never drilled for your tenants."
    since = now - dt.timedelta(days=conf.current().drill["overdue_days"])
    said = drilled.said(last)
    if not last.passed:
        return "problem", f"{said}: {last.error}."
    return ("warning", f"{said}; that is long ago.") if last.started_at < since else ("ok", said)


def _commands(tenants: frozenset[str] | None) -> list[str]:
    """What to type, for the target that the settings name, or else for one to fill in."""
    chosen = conf.current().drill
    named = [(name, str(chosen[name])) for name in ("tenant", "feature") if chosen[name]]
    if named and (tenants is None or chosen["tenant"] in tenants):
        return [shlex.join(COMMAND)]
    given = [("tenant", "KEY"), ("feature", "KEY")]
    return [shlex.join([*COMMAND, f"--{name}", value]) for name, value in given]
