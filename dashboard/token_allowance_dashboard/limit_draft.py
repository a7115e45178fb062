"""A limit that is being written: its form, and what saving it would do."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django import forms
from django.http import QueryDict

from token_allowance import conf
from token_allowance.admin import amounts
from token_allowance.admin.limit_form import LimitForm
from token_allowance.exceptions import StoreUnavailable
from token_allowance.limits import DIMENSIONS, EACH, Unit, checked_identifier, microseconds
from token_allowance.models import Limit, Reservation
from token_allowance.models.revisions import written
from token_allowance_dashboard import holders, replay, spending
from token_allowance_dashboard.access import Access
from token_allowance_dashboard.rulebook import Rulebook, Standing
from token_allowance_dashboard.spending import Scope

NAMED = 20  # budgets that would be blocked at once
MONTH = dt.timedelta(days=30)
NOTED = dt.timedelta(days=1)
TIMES = 12  # tenths of the last 30 days that a first limit offers
STEP_MICROS = 1_000_000


class DraftForm(LimitForm):
    """The admin's form of a limit, with a reason that each saving needs."""

    def __init__(self, *args: Any, who: Access, **options: Any) -> None:
        super().__init__(*args, **options)
        self.only_tenants = who.tenants
        self.offers_tenants = False
        self.fields["reason"].required = True
        self.fields["reason"].help_text = "Kept in the history of this limit."
        self.fields["expires_at"].widget = forms.DateTimeInput(
            {"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"
        )


@dataclass(frozen=True, slots=True)
class Preview:
    """What the draft would have done, and does the moment that it is saved."""

    replay: replay.Replay
    blocked: list[Standing]  # budgets that are spent already, so refused at once
    changes: list[tuple[str, Any, Any]]
    refuses: bool  # when it is spent
    begins_to_refuse: bool  # it observed until now
    noted: int | None  # calls of a day that were noted as ones to refuse
    store_down: bool = False


def preview(limit: Limit, was: Limit | None, who: Access, now: dt.datetime) -> Preview:
    """``limit`` is not saved; ``was`` is what it is now, None for a new one."""
    if limit._state.adding:
        limit.tracked_since = microseconds(now)  # its counters are read from the ledger
    book = Rulebook(now, changed=limit)
    value = book.rule(limit)
    everywhere = conf.current().MODE == "observe"
    refuses = not everywhere and limit.mode != "observe" and limit.is_active
    begins = refuses and was is not None and (was.mode == "observe" or not was.is_active)
    blocked, down = [], False
    try:
        blocked = _blocked(limit, book, who, now) if refuses else []
    except StoreUnavailable:
        down = True
    return Preview(
        replay=replay.run(value, book, now),
        blocked=blocked,
        changes=_changes(was, limit),
        refuses=refuses,
        begins_to_refuse=begins,
        noted=_noted(limit, who, now) if begins else None,
        store_down=down,
    )


def _blocked(limit: Limit, book: Rulebook, who: Access, now: dt.datetime) -> list[Standing]:
    least = book.rule(limit).stop_amount
    found = holders.values([limit], now, who.tenants, NAMED, least)
    budgets = [budget for budget in book.opened(found) if budget.limit.id == limit.pk]
    full = [one for one in book.standings(budgets) if one.used >= one.limit.stop_amount]
    return sorted((one for one in full if not one.observe), key=lambda one: (-one.used, one.whose))


def _changes(was: Limit | None, limit: Limit) -> list[tuple[str, Any, Any]]:
    if was is None:
        return []
    before, after = written(was), written(limit)
    found = []
    for name in after:
        if before[name] == after[name]:
            continue
        sides = [before[name], after[name]]
        if name == "amount":
            sides = [amounts.text(was.amount, was.unit), amounts.text(limit.amount, limit.unit)]
        found.append((name.replace("_", " "), *(_word(side) for side in sides)))
    return found


def _word(value: Any) -> Any:
    if value is None or value in ("", []):
        return "—"
    if value == EACH:
        return "each"
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _noted(limit: Limit, who: Access, now: dt.datetime) -> int:
    """Calls of the last day that some limit would have refused, of those this one is about."""
    named = {n: v for n in DIMENSIONS if (v := getattr(limit, n)) not in ("", EACH)}
    rows = Reservation.objects.filter(Scope(named, who.tenants).where())
    rows = rows.filter(created_at__gte=now - NOTED)
    return rows.filter(flags__icontains='"would_refuse"').count()


def initial(query: QueryDict, who: Access, now: dt.datetime) -> dict[str, Any]:
    """What a new limit starts from: the scope of a row somewhere else, or all calls together."""
    named = {}
    for name in DIMENSIONS:
        try:
            named[name] = checked_identifier(name, query[name])
        except (KeyError, ValueError):
            continue
    if named:
        return {**dict.fromkeys(DIMENSIONS, ""), **named, "window": "day"}
    if query.get("first"):
        return {
            **dict.fromkeys(DIMENSIONS, ""),
            "window": "month",
            "mode": "observe",
            "amount": amounts.written(first_micros(who, now), Unit.COST),
        }
    return {}


def first_micros(who: Access, now: dt.datetime) -> int:
    """A monthly amount to begin with: the last 30 days and a fifth, in whole dollars."""
    rows = spending.grouped(now - MONTH, now, Scope({}, who.tenants), (), spending.edge(now))
    spent = rows[0].figures.cost_micros if rows else 0
    return max(STEP_MICROS, -(-spent * TIMES // 10 // STEP_MICROS) * STEP_MICROS)
