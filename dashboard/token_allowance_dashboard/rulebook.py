"""The limits in force as values: the budgets of many tenants and users without a query for each."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from django.db.models import Q

from token_allowance import admission, conf, levels, policy
from token_allowance.alerts.rungs import whose
from token_allowance.increases import Increase
from token_allowance.limits import DIMENSIONS, EACH, STATED, Attribution, Budget, Limit, Unit, apply
from token_allowance.models import Limit as LimitRow
from token_allowance.models import LimitIncrease, Tenant
from token_allowance.policy import TenantFacts
from token_allowance.stores.base import Room
from token_allowance.windows import Window

Values = tuple[tuple[str, str], ...]  # dimension and value, as a budget has them
NOBODY = TenantFacts()
STATES = ("ok", "warning", "degraded", "blocked", "stopped", "observing", "unlimited")


@dataclass(frozen=True, slots=True)
class Standing:
    """How one budget stands. Amounts in its own unit."""

    room: Room
    observe: bool  # nothing is refused, whatever the limit says

    @property
    def limit(self) -> Limit:
        return self.room.budget.limit

    @property
    def values(self) -> Values:
        return self.room.budget.values

    @property
    def whose(self) -> str:
        return whose(self.room.budget)

    @property
    def used(self) -> int:
        return self.room.used

    @property
    def reserved(self) -> int:
        return self.room.reserved

    @property
    def amount(self) -> int:
        return self.limit.amount

    @property
    def left(self) -> int:
        return self.room.available

    @property
    def unit(self) -> str:
        return self.limit.unit.value

    @property
    def percent(self) -> int:
        """Of the amount. A limit that admits nothing is full."""
        return 100 * self.used // self.amount if self.amount else 100

    @property
    def meter(self) -> int:
        return min(100, self.percent)

    @property
    def state(self) -> str:
        return admission.state_of(self.room, self.observe)

    @property
    def overshoot(self) -> int:
        return max(0, self.used - self.amount)

    @property
    def resets_at(self) -> dt.datetime | None:
        return self.room.resets_at()


class Rulebook:
    """The limits of one moment. ``where`` narrows to the rows that matter to a page.

    ``changed`` is a row as it may be saved: it stands in the place of the one in force.
    """

    def __init__(
        self, now: dt.datetime, where: Q | None = None, changed: LimitRow | None = None
    ) -> None:
        self.now = now
        self._named = policy.confirmed().model
        self._zone = conf.current().zone_name
        self._facts: dict[str, TenantFacts] = {}
        self._limits: dict[tuple[str, ...], dict[tuple[str, ...], list[Limit]]] = {}
        rows = LimitRow.objects.filter(where or Q(), is_active=True).exclude(expires_at__lte=now)
        if changed is not None:
            rows = rows.exclude(pk=changed.pk)
        increases = defaultdict[int, list[Increase]](list)
        for one in LimitIncrease.objects.filter(until__gt=now):
            increases[one.limit_id].append(
                Increase(amount=one.amount, until=one.until, tenant=one.tenant, user=one.user)
            )
        for row in [*rows.order_by(), *([changed] if changed is not None else [])]:
            limit = self.rule(row, tuple(increases[row.pk] if row.pk else ()))
            rules = tuple(getattr(limit, name) for name in limit.shape)
            self._limits.setdefault(limit.shape, {}).setdefault(rules, []).append(limit)

    def rule(self, row: LimitRow, increases: tuple[Increase, ...] = ()) -> Limit:
        """A row as the value that budgets are opened from."""
        percentages = row.notify_at if levels.are_levels(row.notify_at) else levels.NOTIFY_AT
        return Limit(
            id=row.pk, tenant=row.tenant, user=row.user, session=row.session, feature=row.feature,
            model=self._named(row.model), plan=row.plan, window=Window(row.window),
            rolling_seconds=row.rolling_seconds, anchor_day=row.anchor_day,
            time_zone=row.time_zone, unit=Unit(row.unit), amount=row.amount,
            observe=row.mode == "observe", notify_at=tuple(sorted(set(percentages))),
            degrade_at=row.degrade_at, hard_stop_percent=row.hard_stop_percent,
            tracked_since=row.tracked_since, expires_at=row.expires_at, increases=increases,
        )  # fmt: skip

    def know(self, tenants: Iterable[str]) -> None:
        """Look up these tenants' plans, zones and modes at once."""
        asked = {key for key in tenants if key and key not in self._facts}
        if not asked:
            return
        self._facts.update(dict.fromkeys(asked, NOBODY))
        for row in Tenant.objects.filter(key__in=asked).order_by():
            self._facts[row.key] = TenantFacts(
                row.plan, row.time_zone, row.mode == "observe", row.is_active, row.tracked_since
            )

    def facts(self, tenant: str) -> TenantFacts:
        self.know([tenant])
        return self._facts.get(tenant, NOBODY)

    def matching(self, values: Values, at: dt.datetime | None = None) -> list[Budget]:
        """The budgets of exactly these values, also those that a narrower limit overrides."""
        own = dict(values)
        shape = tuple(name for name in DIMENSIONS if name in own)
        tables = self._limits.get(shape, {})
        facts = self.facts(own.get("tenant", ""))
        rules = product(*((EACH, own[name]) for name in shape))
        found = [policy.for_tenant(limit, facts, self._zone)
                 for rule in rules for limit in tables.get(rule, ())]  # fmt: skip
        if not found:
            return []
        attribution = Attribution(**{name: own.get(name, "") for name in STATED})
        budgets, _ = apply(
            found, attribution, model=own.get("model", ""), plan=facts.plan, now=at or self.now
        )
        return budgets

    def opened(self, values: Iterable[Values], at: dt.datetime | None = None) -> list[Budget]:
        """The budgets of exactly these values, by which calls are refused."""
        asked = {self.canonical(pairs) for pairs in values}
        self.know(dict(pairs).get("tenant", "") for pairs in asked)
        return [b for pairs in asked for b in self.matching(pairs, at) if b.enforced]

    def standings(self, budgets: Iterable[Budget], known: Iterable[Room] = ()) -> list[Standing]:
        """How they stand, by one question to the store for those that are not ``known``.

        Raises StoreUnavailable.
        """
        everywhere = conf.current().MODE == "observe"
        rooms = {room.budget.key: room for room in known}
        asked = {one.key: one for one in budgets if one.key not in rooms}
        rooms.update((room.budget.key, room) for room in conf.store().usage(list(asked.values())))
        return [
            Standing(room, everywhere or self._observes(room.budget)) for room in rooms.values()
        ]

    def _observes(self, budget: Budget) -> bool:
        return budget.limit.observe or self.facts(dict(budget.values).get("tenant", "")).observe

    def canonical(self, values: Values) -> Values:
        """With the model as limits call it."""
        return tuple((n, self._named(v) if n == "model" else v) for n, v in values)
