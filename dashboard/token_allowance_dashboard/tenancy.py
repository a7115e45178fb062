"""How tenants stand: their tightest budgets, and whether their calls are stopped."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable

from django.db.models import Q

from token_allowance import conf, policy
from token_allowance.exceptions import StoreUnavailable
from token_allowance.limits import DIMENSIONS, Budget
from token_allowance.models import Counter, HourlySpend
from token_allowance.stops import ALL_PERCENT, SwitchRule
from token_allowance.stores.base import Room, fresh
from token_allowance.stores.database import DatabaseStore
from token_allowance_dashboard import holders
from token_allowance_dashboard.rulebook import Rulebook, Standing

#: Limits that look at the tenant and at nothing else.
OF_TENANTS = Q(**{name: "" for name in DIMENSIONS if name != "tenant"}) & ~Q(tenant="")


MOST_SUMMED = 50  # budgets without a counter that the store is left to sum


def standings(keys: Collection[str], now: dt.datetime) -> dict[str, list[Standing]]:
    """The budgets of these tenants as a whole, each one's fullest first: one question to the store.

    Nothing while it cannot be asked.
    """
    book = Rulebook(now, where=OF_TENANTS)
    found = defaultdict[str, list[Standing]](list)
    budgets = book.opened((("tenant", key),) for key in keys)
    try:
        for one in book.standings(budgets, _rolled(budgets)):
            found[dict(one.values)["tenant"]].append(one)
    except StoreUnavailable:
        return {}
    for own in found.values():
        own.sort(key=fullness)
    return found


def _rolled(budgets: Collection[Budget]) -> list[Room]:
    """Of a limit that is new most tenants have no counter yet, which the store would sum from the
    ledger, one by one: where there are many, the roll-ups tell what their calls have used."""
    if not isinstance(conf.store(), DatabaseStore):
        return []
    keys = Counter.objects.filter(key__in=[one.key for one in budgets]).values_list("key")
    counted = {key for (key,) in keys}
    absent = [one for one in budgets if one.key not in counted and not fresh(one)]
    if len(absent) <= MOST_SUMMED:
        return []
    groups = defaultdict[tuple[dt.datetime | None, str, str], dict[str, Budget]](dict)
    for one in absent:
        group = groups[one.window.start, one.limit.unit.value, one.limit.adjective]
        group[dict(one.values)["tenant"]] = one
    found = []
    for (start, unit, _), own in groups.items():
        rows = HourlySpend.objects.filter(tenant__in=own)
        if start is not None:
            rows = rows.filter(starts_at__gte=start)
        sums = rows.order_by().values("tenant").annotate(used=holders.measure(unit))
        used = {row["tenant"]: row["used"] for row in sums}
        found += [Room(one, used.get(tenant, 0), 0) for tenant, one in own.items()]
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
