"""Asking without charging: may calls be made now, and how much is left?"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction
from django.http import HttpResponseBase
from django.utils import timezone

from token_allowance import conf, levels, policy, refusal_counts, threads
from token_allowance.attribution import Charge, charge_to, current
from token_allowance.bodies import charged
from token_allowance.decisions import obey_known_switches
from token_allowance.entries import new_id
from token_allowance.exceptions import StoreUnavailable
from token_allowance.limits import NOTHING, Attribution, Budget, Limit, apply
from token_allowance.plans import check_attribution, check_switches
from token_allowance.refusals import exceeded
from token_allowance.stores.base import Request, Room

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Remaining:
    """One budget as its owner sees it. Amounts are in ``unit``: micro-dollars for ``cost``."""

    limit: Limit
    scope: str
    window: str
    unit: str
    amount: int
    used: int
    reserved: int
    available: int
    resets_at: dt.datetime | None
    #: ok, warning (its first notify level), degraded, blocked, observing (over, but allowed)
    state: str


def remaining(
    *, tenant: Any = None, user: Any = None, session: Any = None, feature: Any = None,
    model: str = "",
) -> list[Remaining]:  # fmt: skip
    """The budgets that calls so attributed are counted in. What is not given comes from around."""
    charge = charge_to(tenant=tenant, user=user, session=session, feature=feature).charge()
    return threads.call(_remaining, charge.attribution(), model)


async def aremaining(
    *, tenant: Any = None, user: Any = None, session: Any = None, feature: Any = None,
    model: str = "",
) -> list[Remaining]:  # fmt: skip
    charge = charge_to(tenant=tenant, user=user, session=session, feature=feature).charge()
    attribution = await charge.aattribution()
    return await threads.acall(_remaining, attribution, model)


def admit(
    *, tenant: Any = None, user: Any = None, session: Any = None, feature: Any = None,
    model: str = "",
) -> None:  # fmt: skip
    """Raise AllowanceExceeded if a budget is spent, SwitchEngaged if such calls are stopped.

    Charges nothing and holds nothing: the calls themselves are still checked one by one.
    """
    charge = charge_to(tenant=tenant, user=user, session=session, feature=feature).charge()
    threads.call(_admit_if_known, charge, charge.attribution(), model)


async def aadmit(
    *, tenant: Any = None, user: Any = None, session: Any = None, feature: Any = None,
    model: str = "",
) -> None:  # fmt: skip
    charge = charge_to(tenant=tenant, user=user, session=session, feature=feature).charge()
    attribution = await charge.aattribution()
    await threads.acall(_admit_if_known, charge, attribution, model)


def require(
    *,
    tenant: Any = None,
    user: Any = None,
    session: Any = None,
    feature: Any = None,
    max_calls: int | None = None,
    max_cost: Decimal | int | str | None = None,
) -> Callable[[F], F]:
    """Decorate a view or method: refuse before it starts if a budget is spent, charge its calls so.

    Values may be callables, as with charge_to. Works on ``def`` and ``async def``.
    """
    outer = charge_to(
        tenant=tenant,
        user=user,
        session=session,
        feature=feature,
        max_calls=max_calls,
        max_cost=max_cost,
    )

    def decorate(function: F) -> F:
        if iscoroutinefunction(function):

            @functools.wraps(function)
            async def admitted_coroutine(*args: Any, **kwargs: Any) -> Any:
                await aadmit()
                return _followed(await function(*args, **kwargs))

            return outer(admitted_coroutine)  # type: ignore[return-value]

        @functools.wraps(function)
        def admitted(*args: Any, **kwargs: Any) -> Any:
            admit()
            return _followed(function(*args, **kwargs))

        return outer(admitted)  # type: ignore[return-value]

    return decorate


def _followed(returned: Any) -> Any:
    """A streamed body is charged like the view that made it, although its steps come later."""
    return charged(returned, current()) if isinstance(returned, HttpResponseBase) else returned


def _budgets(
    attribution: Attribution, model: str, now: dt.datetime
) -> tuple[policy.Policy, list[Budget], frozenset[str]]:
    decided = policy.confirmed()
    plan = decided.tenant(attribution.tenant).plan
    limits = decided.limits_for(attribution)
    known = decided.model(model)
    budgets, missing = apply(limits, attribution, model=known, plan=plan, now=now)
    return decided, budgets, missing


def _remaining(attribution: Attribution, model: str) -> list[Remaining]:
    decided, budgets, _ = _budgets(attribution, model, timezone.now())
    shown = [budget for budget in budgets if budget.enforced]
    observe = conf.current().MODE == "observe" or decided.tenant(attribution.tenant).observe
    return [_shown(room, observe) for room in conf.store().usage(shown)]


def _shown(room: Room, observe: bool) -> Remaining:
    limit = room.budget.limit
    return Remaining(
        limit=limit,
        scope=limit.scope,
        window=limit.window.value,
        unit=limit.unit.value,
        amount=limit.amount,
        used=room.used,
        reserved=room.reserved,
        available=room.available,
        resets_at=room.resets_at(),
        state=state_of(room, observe),
    )


def state_of(room: Room, observe: bool) -> str:
    used, limit = room.used, room.budget.limit
    if used >= limit.stop_amount:
        return "observing" if observe or limit.observe else "blocked"
    if limit.degrade_amount is not None and used >= limit.degrade_amount:
        return "degraded"
    told = any(used >= levels.reached_from(limit.amount, level) for level in limit.notify_at)
    return "warning" if told else "ok"


def _admit_if_known(charge: Charge, attribution: Attribution, model: str) -> None:
    with refusal_counts.counted("", model, attribution):
        try:
            _admit(charge, attribution, model)
        except StoreUnavailable as error:
            if not conf.current().admits_without_store:
                raise
            obey_known_switches(attribution, model, error)


def _admit(charge: Charge, attribution: Attribution, model: str) -> None:
    now = timezone.now()
    decided, budgets, missing = _budgets(attribution, model, now)
    observe = conf.current().MODE == "observe" or decided.tenant(attribution.tenant).observe
    check_switches(attribution, decided.model(model), decided, now, observe=observe)
    check_attribution(attribution, missing, observe=observe)
    hard = [b for b in budgets if b.enforced and not observe and not b.limit.observe]
    spent = [
        room for room in conf.store().usage(hard) if room.used >= room.budget.limit.stop_amount
    ]
    if spent:
        request = Request(
            id=new_id(),
            version=decided.version,
            budgets=hard,
            amounts=NOTHING,
            lease_seconds=0,
            row={},
            now=now,
        )
        raise exceeded(request, spent, attribution, charge.trace_id)
