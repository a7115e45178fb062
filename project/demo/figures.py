"""The numbers beside the forms: budgets with their meters, and the last rows of the ledger."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from django.utils import timezone

from project.demo.people import Person
from token_allowance import allowance
from token_allowance.models import Reservation
from token_allowance.money import format_usd

ROWS_SHOWN = 20
AGENT = "agent"
WINDOWS = {"minute": "this minute", "hour": "this hour", "day": "today"}
STATE_WORDS = {
    "ok": "ok",
    "warning": "warning",
    "degraded": "nearly used up",
    "blocked": "used up",
    "observing": "over, only observed",
}


@dataclass(frozen=True, slots=True)
class Meter:
    """One budget in words; the integers are in the budget's unit, for the meter element."""

    title: str
    window: str
    limit: str
    spent_word: str
    spent: str
    reserved: str
    left: str
    percent: str
    state: str
    state_words: str
    amount: int
    taken: int
    warning_at: int
    nearly_at: int
    resets_at: dt.datetime | None
    resets_in: str


def meters(person: Person) -> list[Meter]:
    now = timezone.now()
    found = allowance.remaining(tenant=person.tenant, user=person.user, feature=AGENT)
    return [_meter(budget, person, now) for budget in sorted(found, key=_narrow_first)]


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the ledger in words."""

    created_at: dt.datetime
    tenant: str
    user: str
    feature: str
    model: str
    state: str
    reserved: str
    charged: str
    flags: str


def lines(most: int = ROWS_SHOWN) -> list[Line]:
    """The newest first."""
    return [
        Line(
            created_at=row.created_at,
            tenant=row.tenant,
            user=row.user,
            feature=row.feature,
            model=row.model,
            state=row.state,
            reserved=money(row.reserved_micros),
            charged=money(row.cost_micros),
            flags=", ".join(row.flags),
        )
        for row in Reservation.objects.order_by("-id")[:most]
    ]


def money(micros: int | None) -> str:
    """Exact: a small amount never looks like nothing."""
    return "unknown" if micros is None else format_usd(micros)


def _narrow_first(budget: allowance.Remaining) -> tuple[bool, bool]:
    return "feature" in budget.limit.shape, "user" not in budget.limit.shape


def _meter(budget: allowance.Remaining, person: Person, now: dt.datetime) -> Meter:
    calls = budget.unit == "calls"
    return Meter(
        title=_title(budget, person),
        window=WINDOWS.get(budget.window, budget.window),
        limit=_text(budget.amount, budget.unit) + (" calls" if calls else ""),
        spent_word="Made" if calls else "Spent",
        spent=_text(budget.used, budget.unit),
        reserved=_text(budget.reserved, budget.unit),
        left=_text(budget.available, budget.unit),
        percent=percent(budget.used, budget.amount),
        state=budget.state,
        state_words=STATE_WORDS.get(budget.state, budget.state),
        amount=budget.amount,
        taken=min(budget.amount, budget.used + budget.reserved),
        warning_at=budget.amount * 7 // 10,
        nearly_at=budget.amount * 9 // 10,
        resets_at=budget.resets_at,
        resets_in="" if budget.resets_at is None else duration(budget.resets_at - now),
    )


def _title(budget: allowance.Remaining, person: Person) -> str:
    if "feature" in budget.limit.shape:
        return f"Agent calls of {person.tenant}"
    if "user" in budget.limit.shape:
        return f"{person.name} of {person.tenant}"
    return f"All of {person.tenant}"


def _text(number: int, unit: str) -> str:
    return format_usd(number) if unit == "cost" else f"{number:,}"


def percent(used: int, amount: int) -> str:
    """Rounded down, but what is used at all is never 0 %."""
    whole = 100 * used // amount if amount else 100
    return "<1 %" if used and not whole else f"{whole} %"


def duration(left: dt.timedelta) -> str:
    """ "5 h 12 min", rounded up to the minute."""
    minutes = max(1, -(-int(left.total_seconds()) // 60))
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
