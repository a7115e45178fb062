"""How tenants stand: their tightest budgets, and whether their calls are stopped."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable

from django.db.models import Q

from token_allowance import policy
from token_allowance.exceptions import StoreUnavailable
from token_allowance.limits import DIMENSIONS
from token_allowance.stops import ALL_PERCENT, SwitchRule
from token_allowance_dashboard.rulebook import Rulebook, Standing

#: Limits that look at the tenant and at nothing else.
OF_TENANTS = Q(**{name: "" for name in DIMENSIONS if name != "tenant"}) & ~Q(tenant="")


def standings(keys: Collection[str], now: dt.datetime) -> dict[str, list[Standing]]:
    """The budgets of these tenants as a whole, each one's fullest first: one question to the store.

    Nothing while it cannot be asked.
    """
    book = Rulebook(now, where=OF_TENANTS)
    found = defaultdict[str, list[Standing]](list)
    try:
        for one in book.standings(book.opened((("tenant", key),) for key in keys)):
            found[dict(one.values)["tenant"]].append(one)
    except StoreUnavailable:
        return {}
    for budgets in found.values():
        budgets.sort(key=fullness)
    return found


def fullness(one: Standing) -> tuple[int, int]:
    """Sorts the fullest first. What refuses comes before what only observes."""
    return -one.percent, one.state == "observing"


def stopping(now: dt.datetime) -> list[SwitchRule]:
    """The switches that stop all calls of a tenant, or of everybody."""
    return [
        rule
        for rule in policy.confirmed().switches
        if (rule.ends_at is None or rule.ends_at > now)
        and rule.percent == ALL_PERCENT
        and all(name == "tenant" for name, _ in rule.named)
    ]


def is_stopped(key: str, is_active: bool, rules: Iterable[SwitchRule]) -> bool:
    return not is_active or any(all(v == key for _, v in rule.named) for rule in rules)


def state(tightest: Standing | None, stopped: bool) -> str:
    if stopped:
        return "stopped"
    return "unlimited" if tightest is None else tightest.state
