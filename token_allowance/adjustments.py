"""Corrections by an operator: budgets that are said to have used more, less, or nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.utils import timezone

from token_allowance import conf, money, policy, threads
from token_allowance.entries import new_id
from token_allowance.limits import (
    DIMENSIONS,
    IDENTIFIER_LENGTH,
    Attribution,
    Budget,
    Limit,
    Unit,
    apply,
    checked_identifier,
)
from token_allowance.stores import base
from token_allowance.windows import Window

REASON_LENGTH = 500
WHOLE_DIGITS = 15


@dataclass(frozen=True, slots=True)
class Adjusted:
    """One budget after its adjustment. Amounts are in ``unit``: micro-dollars for ``cost``.

    ``amount`` was added to ``used``, which never falls below 0: less is taken off then than was
    asked, and 0 says that there was nothing to take off.
    """

    limit: Limit
    scope: str
    window: str
    unit: str
    amount: int
    used: int
    reserved: int
    available: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which budgets are meant: all of exactly these values, or those of one unit, window, limit."""

    values: dict[str, str]
    unit: Unit | None
    window: Window | None
    limit: int | None

    def means(self, budget: Budget) -> bool:
        limit = budget.limit
        return (
            budget.enforced
            and dict(budget.values) == self.values
            and self.unit in (None, limit.unit)
            and self.window in (None, limit.window)
            and self.limit in (None, limit.id)
        )

    def __str__(self) -> str:
        named = [*self.values.items(), *((n, getattr(self, n)) for n in ("unit", "window"))]
        named.append(("limit", self.limit))
        return ", ".join(f"{name} {value}" for name, value in named if value) or "all calls"


def adjust(
    *,
    reason: str,
    by: Any,
    amount: Decimal | int | str | None = None,
    reset: bool = False,
    unit: str | None = None,
    window: str | None = None,
    limit: Any = None,
    everything: bool = False,
    tenant: Any = None,
    user: Any = None,
    session: Any = None,
    feature: Any = None,
    model: Any = None,
) -> list[Adjusted]:
    """Correct what budgets have used in their windows of now, and say which (case C68).

    Meant are all budgets of exactly the values named, or with ``everything=True`` those of all
    calls together: a user's reset leaves the tenant's budget alone. ``unit``, ``window`` or
    ``limit`` (a Limit or its id) choose among them. ``amount`` is added, in dollars or, with
    ``unit``, in tokens or calls; below 0 it gives back. ``reset=True`` takes off all that is used,
    in every unit; calls in flight keep what they hold. Each budget is adjusted in one step, which
    writes an Adjustment row. ValueError if no budget is meant or the amount is none.
    """
    named = {"tenant": tenant, "user": user, "session": session, "feature": feature, "model": model}
    values = {n: checked_identifier(n, v) for n, v in named.items() if v is not None}
    if everything == bool(values):
        raise ValueError("name whose budget it is (tenant=, user=, ...) or everything=True")
    if reset == (amount is not None):
        raise ValueError("give either amount= or reset=True")
    chosen = None if unit is None and reset else Unit(unit or Unit.COST)
    wanted = Wanted(
        values,
        unit=chosen,
        window=None if window is None else Window(window),
        limit=None if limit is None else int(getattr(limit, "id", limit)),
    )
    more = None if amount is None else signed(amount, chosen or Unit.COST)
    why = {"reason": _text("reason", reason, REASON_LENGTH), "by": _text("by", by)}
    return threads.call(_adjust, wanted, more, why)


async def aadjust(**options: Any) -> list[Adjusted]:
    """The same from a coroutine."""
    return await threads.acall(lambda: adjust(**options))


def signed(amount: Decimal | int | str, unit: Unit) -> int:
    """Dollars as micro-dollars, or whole tokens or calls. TypeError for floats and booleans,
    ValueError for 0 and for what is no amount."""
    size: Any = amount
    if isinstance(amount, str | Decimal) or type(amount) is int:
        size = str(amount).strip().removeprefix("-")
    if unit is Unit.COST or not isinstance(size, str):
        number = money.to_micros(size)
    elif not size.isdecimal() or len(size) > WHOLE_DIGITS:
        raise ValueError(f"{unit} are whole numbers, not {amount}")
    else:
        number = int(size)
    if not number:
        raise ValueError("an adjustment by 0 changes nothing")
    return -number if str(amount).strip().startswith("-") else number


def _text(name: str, given: Any, length: int = IDENTIFIER_LENGTH) -> str:
    text = str(given).replace("\x00", "").strip()
    if not text or given is None:
        raise ValueError(f"an adjustment needs {name}=: it stays in the books")
    return text[:length]


def _adjust(wanted: Wanted, amount: int | None, why: dict[str, str]) -> list[Adjusted]:
    now = timezone.now()
    store: base.Store = conf.store()
    return [
        _shown(store.adjust(budget, amount, {"id": new_id(), "created_at": now, **why}))
        for budget in _budgets(wanted, now)
    ]


def _budgets(wanted: Wanted, now: Any) -> list[Budget]:
    decided, values = policy.confirmed(), dict(wanted.values)
    if "model" in values:
        values["model"] = wanted.values["model"] = decided.model(values["model"])
    attribution = Attribution(**{n: v for n, v in values.items() if n != "model"})
    budgets, missing = apply(
        decided.limits_for(attribution),
        attribution,
        model=values.get("model", ""),
        plan=decided.tenant(attribution.tenant).plan,
        now=now,
    )
    if meant := [budget for budget in budgets if wanted.means(budget)]:
        return meant
    raise ValueError(f"there is no budget of exactly {wanted}.{_hint(budgets, missing)}")


def _hint(budgets: Iterable[Budget], missing: Iterable[str]) -> str:
    """What such calls are counted in, and what their budgets might be named by besides."""
    scopes = sorted({" and ".join(b.limit.shape) or "all calls" for b in budgets if b.enforced})
    hint = f" Such calls are counted in budgets of: {', '.join(scopes)}." if scopes else ""
    if lacking := [name for name in DIMENSIONS if name in missing]:
        hint += f" Limits also look at the {' and '.join(lacking)}: name them too."
    return hint


def _shown(adjusted: base.Adjusted) -> Adjusted:
    room = adjusted.room
    limit = room.budget.limit
    return Adjusted(
        limit=limit,
        scope=limit.scope,
        window=limit.window.value,
        unit=limit.unit.value,
        amount=adjusted.amount,
        used=room.used,
        reserved=room.reserved,
        available=room.available,
    )
