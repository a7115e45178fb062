"""Which price matches this model, and which names have been called without one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import Count

from token_allowance import plans, policy
from token_allowance.models import ModelAlias, Price, Reservation
from token_allowance.names import name_candidates
from token_allowance.pricing import ModelPrice

LOOKED_BACK = dt.timedelta(days=7)
LOOKED_AT = 20_000
SHOWN = 20


@dataclass(frozen=True, slots=True)
class Match:
    """How the price of a model is found: the names that are tried in order, with their rows."""

    provider: str
    model: str
    alias: str  # what a declared alias makes of the name, "" without one
    names: tuple[tuple[str, int], ...]  # a name, and how many rows it has
    price: ModelPrice | None

    @property
    def chosen(self) -> str:
        """The name in the price table, ``""`` if none of them is there."""
        return next((name for name, rows in self.names if rows), "")


def matches(
    model: str,
    provider: str = "",
    *,
    at: dt.datetime,
    input_tokens: int = 0,
    service_tier: str = "",
) -> list[Match]:
    """The price of a call as it would be chosen, for one provider or for each that has the name."""
    decided = policy.confirmed()
    found = []
    for one in [provider] if provider else _providers(model):
        served, name = decided.aliases.get(model, (one, model))
        rows = decided.prices(one, model)
        tier = "" if service_tier in plans.DEFAULT_TIERS else service_tier
        candidates = name_candidates(name)
        counted = dict.fromkeys(candidates, 0)
        stored = Price.objects.filter(provider=served, model__in=candidates).order_by()
        counted.update(stored.values_list("model").annotate(n=Count("id")))
        found.append(
            Match(
                provider=served,
                model=model,
                alias=f"{served} {name}" if model in decided.aliases else "",
                names=tuple(counted.items()),
                price=rows.at(at, input_tokens, tier),
            )
        )
    return found


def unpriced_calls(now: dt.datetime) -> list[tuple[str, str, int]]:
    """Provider, model and number of the calls of 7 days whose model has no price even now.

    Only the newest calls are looked at: a page must not read a whole ledger (case C89).
    """
    newest = Reservation.objects.filter(created_at__gte=now - LOOKED_BACK).order_by("-created_at")
    calls = Reservation.objects.filter(
        pk__in=newest.values("pk")[:LOOKED_AT], flags__icontains='"unpriced"'
    )
    counted = calls.order_by().values_list("provider", "model").annotate(n=Count("id"))
    seen: Iterator[tuple[str, str, int]] = iter(counted.order_by("-n")[:SHOWN])
    return [one for one in seen if not priced(one[1], one[0])]


def priced(model: str, provider: str = "", *, alias: str | None = None) -> bool:
    """Is there a price under one of the names by which the model is looked up?"""
    if ModelAlias.objects.using(alias).filter(alias=model).exists():
        return True
    found = Price.objects.using(alias).filter(model__in=name_candidates(model))
    return (found.filter(provider=provider) if provider else found).exists()


def _providers(model: str) -> list[str]:
    """The providers that have a price under one of the names; an empty one if there are none."""
    alias = ModelAlias.objects.filter(alias=model).first()
    if alias is not None:
        return [alias.provider]
    found = Price.objects.filter(model__in=name_candidates(model)).order_by("provider")
    return list(found.values_list("provider", flat=True).distinct()) or [""]
