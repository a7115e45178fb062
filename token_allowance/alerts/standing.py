"""Which budgets are meant: the limits of now, for counter keys or for values of calls."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from token_allowance import keys
from token_allowance.counters import budget_of
from token_allowance.limits import Attribution, Budget, apply
from token_allowance.policy import Policy

Values = tuple[tuple[str, str], ...]  # dimension and value, as a budget has them
#: A window that ended this long ago at most is still told of: of one so short that it ends between
#: two evaluations, and of what was crossed just before it ended.
GRACE = dt.timedelta(minutes=15)
INSTANT = dt.timedelta(microseconds=1)


def named(decided: Policy, counters: Iterable[str], now: dt.datetime) -> dict[str, Budget]:
    """The budgets that these counter keys are of, by key; none where no limit is any more."""
    meant: dict[tuple[Values, dt.datetime], set[str]] = {}
    for counter in counters:
        budget = _read(counter, now)
        if budget is None or budget.is_cap:
            continue
        end = budget.window.end
        if end is not None and end + GRACE <= now:
            continue
        moment = now if end is None or now < end else end - INSTANT
        meant.setdefault((budget.values, moment), set()).add(budget.key)
    found = {}
    for (values, moment), names in meant.items():
        opened = of_values(decided, [values], moment)
        found.update({key: budget for key, budget in opened.items() if key in names})
    return found


def _read(counter: str, now: dt.datetime) -> Budget | None:
    """None if it is no key of ours: a store's events may say anything."""
    try:
        return budget_of(keys.whole(counter) or counter, 0, now)
    except (ValueError, TypeError, LookupError):
        return None


def of_values(decided: Policy, values: Iterable[Values], now: dt.datetime) -> dict[str, Budget]:
    """The budgets of exactly these values, by key."""
    found = {}
    for pairs in values:
        own = dict(pairs)
        model = own.pop("model", "")
        attribution = Attribution(**own)
        budgets, _ = apply(
            decided.limits_for(attribution),
            attribution,
            model=model,
            plan=decided.tenant(attribution.tenant).plan,
            now=now,
        )
        found.update({b.key: b for b in budgets if b.enforced and b.values == pairs})
    return found
