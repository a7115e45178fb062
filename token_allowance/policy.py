"""What the operators have decided: limits, tenants, prices, switches. Cached under a version.

Triggers raise the version inside the writer's own transaction. A store that can compares it in the
same atomic step that admits a call, so the very next reserve of every process obeys a change.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from token_allowance import blocking, conf, pricing, rolling, rules
from token_allowance.limits import EACH, Attribution, Budget, Limit, apply
from token_allowance.names import family, name_candidates
from token_allowance.pricing import RATES, ModelPrice
from token_allowance.stops import SwitchRule
from token_allowance.stores import version
from token_allowance.stores.connections import run

T = TypeVar("T")
NEVER = dt.datetime.max.replace(tzinfo=dt.UTC)
PRICE_COLUMNS = (
    "id", "provider", "model", *RATES, "min_input_tokens", "service_tier", "effective_from",
    "source",
)  # fmt: skip
REMEMBERED = 20_000  # entries of one cache; it is emptied when full
OPENED = 2_000  # kinds of calls whose budgets are remembered; emptied when full


@dataclass(frozen=True, slots=True)
class TenantFacts:
    plan: str = ""
    time_zone: str = ""
    observe: bool = False
    is_active: bool = True
    tracked_since: int = 0


@dataclass(frozen=True, slots=True)
class PriceRows:
    """The prices of one model: its name in the price table, and the rows, an admin's first."""

    model: str
    own: tuple[ModelPrice, ...] = ()
    imported: tuple[ModelPrice, ...] = ()

    def at(self, moment: dt.datetime, input_tokens: int, service_tier: str) -> ModelPrice | None:
        for rows in (self.own, self.imported):
            price = pricing.choose(
                rows, at=moment, input_tokens=input_tokens, service_tier=service_tier
            )
            if price is not None:
                return price
        return None


@dataclass(frozen=True, slots=True)
class Opened:
    """The budgets of all calls that are alike, while no window and no limit begins or ends."""

    since: dt.datetime
    until: dt.datetime
    budgets: tuple[Budget, ...]
    missing: frozenset[str]  # the dimensions that some limit misses on them


class Policy:
    """One version of everything decided, loaded in parts when a call first needs them."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._caches: dict[str, dict[Hashable, Any]] = {}
        self._opened: dict[Hashable, Opened] = {}
        self.version: int = self._run(version.read)  # read first: rows may be newer, never older
        self.generic = self._run(rules.generic)
        self.has_specific: bool = self._run(rules.has_specific)
        now = timezone.now()
        self.has_increases: bool = self._run(lambda c: rules.has_increases(c, now))
        self.aliases = self._run(_aliases)
        self.ladder = self._run(lambda c: rules.ladder(c, self.model))
        self.switches = [self._named(switch) for switch in self._run(_switches)]

    def model(self, name: str) -> str:
        """What a model is called wherever it is counted or stopped, by whatever name it is asked:
        its alias is resolved, and its date is left out, so that no name goes round a limit."""
        return family(self.aliases.get(name, ("", name))[1]) if name not in ("", EACH) else name

    def limits_for(self, attribution: Attribution) -> list[Limit]:
        """The limits that may apply, with the tenant's zone and plan taken into account."""
        names = rules.PEOPLE if self.has_specific or self.has_increases else ("tenant",)
        people = tuple(getattr(attribution, name) for name in names)
        return self._remember("limits", people, lambda: self._limits(attribution))

    def opened(self, attribution: Attribution, model: str, now: dt.datetime) -> Opened:
        """The budgets that a call of this moment is counted in; ``model`` is its name in limits."""
        key = (attribution, model)
        found = self._opened.get(key)
        if found is None or not found.since <= now < found.until:
            limits, plan = self.limits_for(attribution), self.tenant(attribution.tenant).plan
            budgets, missing = apply(limits, attribution, model=model, plan=plan, now=now)
            found = Opened(now, _until(limits, budgets, now), tuple(budgets), missing)
            if len(self._opened) >= OPENED:
                self._opened.clear()
            self._opened[key] = found
        return found

    def tenant(self, key: str) -> TenantFacts:
        if not key:
            return TenantFacts()
        return self._remember("tenants", key, lambda: self._run(lambda c: _tenant(c, key)))

    def prices(self, provider: str, model: str) -> PriceRows:
        """The price rows of a model by its exact name, alias or undated name (case C22)."""
        return self._remember("prices", (provider, model), lambda: self._prices(provider, model))

    def engaged(self, values: dict[str, str], now: dt.datetime) -> SwitchRule | None:
        return next((switch for switch in self.switches if switch.stops(values, now)), None)

    def cutting(self, values: dict[str, str], now: dt.datetime) -> SwitchRule | None:
        """The switch that also cuts such calls while they are under way."""
        cutting = (switch for switch in self.switches if switch.cuts_streams)
        return next((switch for switch in cutting if switch.stops(values, now)), None)

    def _named(self, switch: SwitchRule) -> SwitchRule:
        named = tuple((n, self.model(v) if n == "model" else v) for n, v in switch.named)
        return replace(switch, named=named)

    def _run(self, operation: Callable[[BaseDatabaseWrapper], T]) -> T:
        return run(self.alias, operation)

    def _remember(self, cache: str, key: Hashable, make: Callable[[], T]) -> T:
        entries = self._caches.setdefault(cache, {})
        if key not in entries:
            value = make()
            if len(entries) >= REMEMBERED:
                entries.clear()
            entries[key] = value
        found: T = entries[key] if key in entries else make()
        return found

    def _limits(self, attribution: Attribution) -> list[Limit]:
        found = list(self.generic)
        if self.has_specific:
            found += self._run(lambda c: rules.specific(c, attribution))
        if self.has_increases:
            now = timezone.now()
            found = self._run(lambda c: rules.with_increases(c, found, attribution, now))
        facts = self.tenant(attribution.tenant)
        default = conf.current().zone_name
        named = (replace(limit, model=self.model(limit.model)) for limit in found)
        return [for_tenant(limit, facts, default) for limit in named]

    def _prices(self, provider: str, model: str) -> PriceRows:
        provider, model = self.aliases.get(model, (provider, model))
        names = name_candidates(model)
        rows = self._run(lambda c: _price_rows(c, provider, names))
        for name in names:
            named = [row for row in rows if row.model == name]
            if named:
                own = tuple(row for row in named if row.source == "admin")
                return PriceRows(name, own, tuple(row for row in named if row.source != "admin"))
        return PriceRows(model)


def for_tenant(limit: Limit, facts: TenantFacts, default_zone: str) -> Limit:
    """A tenant's windows follow its zone; a change of plan or zone starts tracking anew."""
    looks_at_tenant = bool(limit.tenant)
    own_zone = facts.time_zone if looks_at_tenant else ""
    follows = bool(limit.plan) or (looks_at_tenant and not limit.time_zone)
    since = max(limit.tracked_since, facts.tracked_since) if follows else limit.tracked_since
    zone = limit.time_zone or own_zone or default_zone
    return replace(limit, time_zone=zone, tracked_since=since)


def _until(limits: Iterable[Limit], budgets: Iterable[Budget], now: dt.datetime) -> dt.datetime:
    """Until when these are the budgets: a window, a slice, a limit or an increase ends then."""
    ends = [b.window.end for b in budgets if b.slice is None]
    ends += [
        rolling.start(b.limit.rolling_seconds, b.slice + 1) for b in budgets if b.slice is not None
    ]
    for limit in limits:
        ends += [limit.expires_at, *(increase.until for increase in limit.increases)]
    return min((end for end in ends if end is not None and end > now), default=NEVER)


def _place() -> tuple[str, str, str]:
    """What a policy is loaded from: alias and name of the database, and the zone of its windows."""
    alias = getattr(conf.store(), "alias", DEFAULT_DB_ALIAS)
    return alias, str(connections.settings[alias]["NAME"]), conf.current().zone_name


class _Current:
    """The policy of this process, per database; one thread loads, the others wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key: Hashable = None
        self._policy: Policy | None = None

    def get(self, *, newer_than: int | None = None) -> Policy:
        key = _place()
        policy = self._policy
        if policy is not None and self._key == key and policy.version != newer_than:
            return policy
        blocking.check()
        with self._lock:
            if self._policy is None or self._key != key or self._policy.version == newer_than:
                self._policy, self._key = Policy(key[0]), key
            return self._policy

    def known(self) -> Policy | None:
        return self._policy if self._key == _place() else None

    def confirmed(self) -> Policy:
        """The policy, its version read from the database now."""
        policy = self.get()
        number = run(policy.alias, version.read)
        return policy if number == policy.version else self.get(newer_than=policy.version)


_current = _Current()


def current() -> Policy:
    """The policy as last loaded; for stores that compare the version themselves."""
    return _current.get()


def known() -> Policy | None:
    """The policy as last loaded, without asking anybody; None if there is none."""
    return _current.known()


def reload(stale: Policy) -> Policy:
    """The policy after ``stale`` was refused; loads once, however many callers ask."""
    return _current.get(newer_than=stale.version)


def confirmed() -> Policy:
    """The policy as of now, for stores that cannot compare the version and for screens."""
    return _current.confirmed()


def _tenant(connection: BaseDatabaseWrapper, key: str) -> TenantFacts:
    sql = (
        "SELECT plan, time_zone, mode, is_active, tracked_since FROM token_allowance_tenant "
        "WHERE key = %s"
    )
    for plan, time_zone, mode, is_active, since in rules.rows(connection, sql, [key]):
        return TenantFacts(plan, time_zone, mode == "observe", bool(is_active), since)
    return TenantFacts()


def _switches(connection: BaseDatabaseWrapper) -> list[SwitchRule]:
    names = ("tenant", "user", "feature", "model")
    sql = (
        'SELECT tenant, "user", feature, model, reason, ends_at, percent, cuts_streams '
        "FROM token_allowance_switch WHERE released_at IS NULL"
    )
    return [
        SwitchRule(
            tuple((n, v) for n, v in zip(names, row[:4], strict=True) if v),
            row[4],
            rules.moment(row[5]),
            row[6],
            bool(row[7]),
        )
        for row in rules.rows(connection, sql)
    ]


def _aliases(connection: BaseDatabaseWrapper) -> dict[str, tuple[str, str]]:
    sql = "SELECT alias, provider, model FROM token_allowance_modelalias"
    return {alias: (provider, model) for alias, provider, model in rules.rows(connection, sql)}


def _price_rows(
    connection: BaseDatabaseWrapper, provider: str, names: list[str]
) -> list[ModelPrice]:
    columns = ", ".join(PRICE_COLUMNS)
    marks = ", ".join(["%s"] * len(names))
    sql = f"SELECT {columns} FROM token_allowance_price WHERE provider = %s AND model IN ({marks})"
    prices = []
    for found in rules.rows(connection, sql, [provider, *names]):
        row = dict(zip(PRICE_COLUMNS, found, strict=True))
        for name in RATES:
            row[name] = None if row[name] is None else Decimal(str(row[name]))
        row["effective_from"] = rules.moment(row["effective_from"])
        prices.append(ModelPrice(**row))
    return prices
