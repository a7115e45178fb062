"""Budgets spent without a call."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

from django.core.exceptions import SynchronousOnlyOperation
from django.utils import timezone

from token_allowance import conf, entries, policy, threads
from token_allowance.attribution import charge_to
from token_allowance.exceptions import StoreUnavailable
from token_allowance.limits import Amounts, Attribution, Unit, apply
from token_allowance.money import to_micros
from token_allowance.plans import Attempt, Plan
from token_allowance.stores.base import Outcome, Request, Settlement, Store
from token_allowance.usage import Usage

PROVIDER = "testing"  # of the ledger rows written here
TRIES = 5


def spend(
    amount: Decimal | int | str,
    *,
    unit: str = "cost",
    tenant: Any = None,
    user: Any = None,
    session: Any = None,
    feature: Any = None,
    model: str = "",
) -> None:
    """Charge the budgets that such calls are counted in, as settled calls would; refuses nothing.

    ``amount`` is in dollars (not a float), or a number of tokens or calls. Dollars and tokens are
    spent by one call. Who pays is named here, else by the ``charge_to`` around. ValueError if no
    active limit of this unit counts such calls. In a coroutine use ``await aspend(...)``; here
    that raises SynchronousOnlyOperation.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        charge = charge_to(tenant=tenant, user=user, session=session, feature=feature).charge()
        _spend(_amounts(amount, Unit(unit)), charge.attribution(), model, Unit(unit))
    else:
        raise SynchronousOnlyOperation("spend() in a coroutine: use await aspend() there.")


async def aspend(
    amount: Decimal | int | str,
    *,
    unit: str = "cost",
    tenant: Any = None,
    user: Any = None,
    session: Any = None,
    feature: Any = None,
    model: str = "",
) -> None:
    """The same from a coroutine."""
    charge = charge_to(tenant=tenant, user=user, session=session, feature=feature).charge()
    attribution = await charge.aattribution()
    await threads.acall(_spend, _amounts(amount, Unit(unit)), attribution, model, Unit(unit))


def _amounts(amount: Decimal | int | str, unit: Unit) -> list[Amounts]:
    """What each of the calls uses that together spend the amount."""
    if unit is Unit.COST:
        return [Amounts(cost_micros=to_micros(amount), tokens=0)]
    number = int(amount)
    if number != Decimal(amount) or number < 0:
        raise ValueError(f"{unit} are whole numbers, not {amount!r}")
    if unit is Unit.TOKENS:
        return [Amounts(cost_micros=0, tokens=number)]
    return [Amounts(cost_micros=0, tokens=0)] * number


def _spend(calls: list[Amounts], attribution: Attribution, model: str, unit: Unit) -> None:
    if calls and not _counted(calls[0], attribution, model, unit):
        named = {**attribution.as_dict(), "model": model}
        said = ", ".join(f"{name}={value!r}" for name, value in named.items() if value)
        raise ValueError(
            f"no active limit in {unit} counts calls of {said or 'nobody'}: nothing to spend. "
            "Create the Limit first, and name every value that it looks at."
        )
    for amounts in calls:
        _charge(amounts, attribution, model)


def _counted(amounts: Amounts, attribution: Attribution, model: str, unit: Unit) -> bool:
    budgets = _plan(amounts, attribution, model, timezone.now()).budgets
    return any(budget.limit.unit is unit for budget in budgets)


def _charge(amounts: Amounts, attribution: Attribution, model: str) -> None:
    """Reserve without regard to what is left, then settle: the store is asked as for a call."""
    store: Store = conf.store()
    now = timezone.now()
    for _ in range(TRIES):
        plan = _plan(amounts, attribution, model, now)
        id = entries.new_id()
        request = Request(
            id=id,
            version=plan.version,
            budgets=plan.budgets,
            amounts=amounts,
            lease_seconds=conf.current().RESERVATION_SECONDS,
            row=entries.begun(id, plan, "", now),
            now=now,
            observe=True,
        )
        if store.reserve(request).outcome is Outcome.ADMITTED:
            final = entries.ended("settled", (), plan.estimate, None, amounts, None)
            store.settle(Settlement(id=id, actual=amounts, row=request.row | final))
            return
    raise StoreUnavailable("The limits are being changed faster than they can be spent.")


def _plan(amounts: Amounts, attribution: Attribution, model: str, now: Any) -> Plan:
    known = policy.confirmed()
    limits = known.limits_for(attribution)
    tenant_plan = known.tenant(attribution.tenant).plan
    budgets, _ = apply(limits, attribution, model=model, plan=tenant_plan, now=now)
    estimate = Usage(input_tokens=amounts.tokens)
    return Plan(
        attempt=Attempt(provider=PROVIDER, model=model, input_tokens=amounts.tokens),
        attribution=attribution,
        version=known.version,
        model=model,
        prices=None,
        price=None,
        estimate=estimate,
        amounts=amounts,
        exact=None,
        budgets=tuple(budgets),
        observe=True,
        flags=(),
    )
