"""The stores under test, and budgets, requests and settlements to give them.

The `store` fixture runs a test against every store. It keeps no transaction open, so other threads
and processes see the same rows; afterwards it empties the tables.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from django.apps import apps
from django.conf import LazySettings
from django.db import connections, transaction
from django.db.models import F
from django.test.utils import setup_databases, teardown_databases

from tests import redis_stores
from token_allowance import allowance, decisions, entries, reservations
from token_allowance.attribution import NOBODY
from token_allowance.limits import (
    DIMENSIONS,
    Amounts,
    Attribution,
    Budget,
    Limit,
    Unit,
    open_budget,
)
from token_allowance.models import Counter, Reservation, Ticket
from token_allowance.plans import Attempt, Plan
from token_allowance.stores import connections as own_connections
from token_allowance.stores import tickets
from token_allowance.stores import version as policy_version
from token_allowance.stores.base import Decision, Outcome, Request, Row, Settlement, Store, holds
from token_allowance.stores.database import DatabaseStore
from token_allowance.stores.memory import MemoryStore
from token_allowance.stores.redis import RedisStore
from token_allowance.usage import Usage

NOW = dt.datetime(2026, 3, 4, 12, 30, tzinfo=dt.UTC)
ALIASES = {"postgresql": "default", "sqlite": "sqlite"}
KEPT = ("PolicyVersion",)
NAMES = {alias: connections.settings[alias]["NAME"] for alias in ALIASES.values()}


@pytest.fixture(scope="session")
def databases(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Every test database: pytest-django makes only those that some test's mark names."""
    with django_db_blocker.unblock():
        missing = {a: None for a, n in NAMES.items() if connections.settings[a]["NAME"] == n}
        made = setup_databases(verbosity=0, interactive=False, aliases=missing)
    yield
    with django_db_blocker.unblock():
        teardown_databases(made, verbosity=0)


@pytest.fixture(params=["memory", "postgresql", "sqlite", "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Each store in turn, empty."""
    if request.param == "memory":
        yield MemoryStore()
        return
    request.getfixturevalue("databases")
    if request.param == "redis":
        unblocked = request.getfixturevalue("django_db_blocker").unblock()
        with unblocked, own_pool("default"), redis_stores.fresh() as made:
            yield made
        return
    alias = ALIASES[request.param]
    with request.getfixturevalue("django_db_blocker").unblock(), own_pool(alias):
        yield DatabaseStore(alias)


@pytest.fixture(params=["postgresql", "sqlite", "redis"])
def database(
    request: pytest.FixtureRequest,
    databases: None,
    django_db_blocker: Any,
    settings: LazySettings,
) -> Iterator[str]:
    """Each database in turn, by alias, with TOKEN_ALLOWANCE set to use it; empty.

    And once with Redis in front of the ledger.
    """
    if request.param == "redis":
        unblocked = django_db_blocker.unblock()
        with unblocked, own_pool("default"), redis_stores.configured() as configuration:
            settings.TOKEN_ALLOWANCE = configuration
            yield "default"
        return
    alias = ALIASES[request.param]
    settings.TOKEN_ALLOWANCE = configured(alias)
    with django_db_blocker.unblock(), own_pool(alias):
        yield alias


def configured(alias: str, **others: Any) -> dict[str, Any]:
    """The TOKEN_ALLOWANCE setting that counts in this database."""
    backend = f"{DatabaseStore.__module__}.{DatabaseStore.__qualname__}"
    return {"STORE": {"BACKEND": backend, "OPTIONS": {"alias": alias}}, **others}


@contextmanager
def own_pool(alias: str) -> Iterator[None]:
    """Let a store keep its connections, as outside of tests it does; empty the tables after."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_connections, "in_tests", lambda: False)
        try:
            yield
        finally:
            empty(alias)
            own_connections.own(alias).close()
            connections[alias].close()


def empty(alias: str) -> None:
    """In one transaction: only at its end must every row have what it refers to."""
    models = apps.get_app_config("token_allowance").get_models(include_auto_created=True)
    tables = [model._meta.db_table for model in models if model.__name__ not in KEPT]
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        for table in tables:
            cursor.execute(f"DELETE FROM {table}")


def budget(
    unit: str = "cost", amount: int = 1000, *, now: dt.datetime = NOW, since: int = 0,
    enforced: bool = True, values: dict[str, str] | None = None, **rule: Any,
) -> Budget:  # fmt: skip
    """The budget of a daily limit; a dimension given by its value is one that each value has."""
    values = values or {name: rule[name] for name in DIMENSIONS if rule.get(name)}
    limit = Limit(unit=Unit(unit), amount=amount, tracked_since=since, **rule)
    return open_budget(limit, values, now, enforced=enforced)


def request(
    *budgets: Budget, cost: int | None = 0, tokens: int = 0, calls: int = 1, id: UUID | None = None,
    key: str = "", lease: float = 600, version: int = 0, at: dt.datetime = NOW,
    observe: bool = False, may_degrade: bool = False, model: str = "m", **attribution: str,
) -> Request:  # fmt: skip
    """A reservation asked for, attributed to the values of its budgets unless told otherwise."""
    ordered = tuple(sorted(budgets, key=lambda b: b.key))
    values = {name: value for b in ordered for name, value in b.values} | attribution
    model = values.pop("model", model)
    amounts = Amounts(cost, tokens, calls)
    plan = Plan(
        attempt=Attempt(provider="openai", model=model, input_tokens=tokens, idempotency_key=key),
        attribution=Attribution(**values),
        version=version,
        model=model,
        prices=None,
        price=None,
        estimate=Usage(tokens),
        amounts=amounts,
        exact=None,
        budgets=ordered,
        observe=observe,
        flags=(),
    )
    id = id or entries.new_id()
    row = entries.begun(id, plan, "", at)
    return Request(
        id=id, version=version, budgets=ordered, amounts=amounts, lease_seconds=lease, row=row,
        now=at, observe=observe, may_degrade=may_degrade,
    )  # fmt: skip


def spent(asked: Request, cost: int | None = 0, tokens: int = 0, *flags: str) -> Settlement:
    """The end of a call that used this much."""
    actual = Amounts(cost, tokens)
    final = entries.ended("settled", flags, Usage(tokens), None, actual, None)
    return Settlement(id=asked.id, actual=actual, row=ledger_row(asked) | final)


def unspent(asked: Request) -> Settlement:
    """The end of a call that used nothing."""
    nothing = Amounts(0, 0, 0)
    final = entries.ended("released", (), Usage(), None, nothing, None)
    return Settlement(id=asked.id, actual=nothing, row=ledger_row(asked) | final)


def ledger_row(asked: Request) -> Row:
    return asked.row | {"holds": holds(asked)}


def reserve(store: Store, asked: Request) -> Decision:
    """Ask under the policy version of now."""
    decision = store.reserve(replace(asked, version=version(store)))
    assert decision.outcome is not Outcome.STALE
    return decision


def charge(store: Store, *budgets: Budget, cost: int = 0, tokens: int = 0, **given: Any) -> Request:
    """A whole call that used what it had reserved."""
    asked = request(*budgets, cost=cost, tokens=tokens, **given)
    assert reserve(store, asked).outcome is Outcome.ADMITTED
    assert store.settle(spent(asked, cost, tokens)) is Outcome.SETTLED
    return asked


def hold(
    tokens: int, model: str = "m", idempotency_key: str = "", **attribution: str
) -> reservations.Reservation:
    """Reserve tokens as a metered call does: through attribution, policy, estimate and store."""
    attempt = Attempt(
        provider="openai", model=model, input_tokens=tokens, max_output_tokens=0,
        idempotency_key=idempotency_key,
    )  # fmt: skip
    return decisions.reserve(attempt, Attribution(**attribution), NOBODY)


def spend(tokens: int, model: str = "m", **attribution: str) -> None:
    """A whole call of that many tokens."""
    hold(tokens, model, **attribution).settle(Usage(tokens))


def used(**attribution: str) -> list[tuple[int, int, int]]:
    """(used, reserved, available) of each budget of such calls."""
    found = allowance.remaining(**attribution)
    return [(budget.used, budget.reserved, budget.available) for budget in found]


def version(store: Store) -> int:
    if isinstance(store, MemoryStore):
        return 0
    return own_connections.run(alias_of(store), policy_version.read)


def figures(store: Store, *budgets: Budget) -> list[tuple[int, int]]:
    """(used, reserved) of each budget."""
    return [(room.used, room.reserved) for room in store.usage(budgets)]


def counters(store: Store) -> dict[str, tuple[int, int]]:
    """(used, reserved) of the counters that exist, by key."""
    if isinstance(store, MemoryStore):
        return {key: (c.used, c.reserved) for key, c in store.counters.items()}
    if isinstance(store, RedisStore):
        return redis_stores.counters(store)
    found = Counter.objects.using(alias_of(store)).values_list("key", "used", "reserved")
    return {key: (used, reserved) for key, used, reserved in found}


def lose(store: Store, *budgets: Budget) -> None:
    """Lose the counters of these budgets."""
    for key in (b.key for b in budgets):
        if isinstance(store, MemoryStore):
            del store.counters[key]
        elif isinstance(store, RedisStore):
            redis_stores.lose(store, key)
        else:
            assert Counter.objects.using(alias_of(store)).filter(key=key).delete()[0] == 1


def clear(store: Store) -> None:
    """Forget every call and counter."""
    if isinstance(store, MemoryStore):
        store.rows.clear()
        store.counters.clear()
        store.adjustments.clear()
        store.queues = tickets.Queues()
    else:
        empty(alias_of(store))
        if isinstance(store, RedisStore):
            redis_stores.clear(store)


def rows(store: Store) -> dict[UUID, Row]:
    """The ledger, by id."""
    if isinstance(store, MemoryStore):
        return store.rows
    store.drain()
    found = Reservation.objects.using(alias_of(store)).values()
    return {row["id"]: dict(row) for row in found}


def row(store: Store, asked: Request) -> Row:
    return rows(store)[asked.id]


def let_pass(store: Store, seconds: float) -> None:
    """Make every lease this much older by the store's own clock."""
    if isinstance(store, MemoryStore):
        ahead = store.clock() - time.time() + seconds
        store.clock = lambda: time.time() + ahead
    elif isinstance(store, RedisStore):
        redis_stores.let_pass(store, seconds)
    else:
        older = F("expires_at") - dt.timedelta(seconds=seconds)
        Reservation.objects.using(alias_of(store)).update(expires_at=older)


def age_tickets(store: Store, seconds: float) -> None:
    """Make every ticket of a call that waits this much older."""
    if isinstance(store, MemoryStore):
        let_pass(store, seconds)
    elif isinstance(store, RedisStore):
        redis_stores.age_tickets(store, seconds)
    else:
        older = F("until") - dt.timedelta(seconds=seconds)
        Ticket.objects.using(alias_of(store)).update(until=older)


def alias_of(store: Store) -> str:
    assert isinstance(store, DatabaseStore | RedisStore)
    return store.alias


def tamper(store: Store, key: str, **figures: int) -> None:
    """Set ``used`` or ``reserved`` of a counter to what they should not be."""
    if isinstance(store, MemoryStore):
        for name, value in figures.items():
            setattr(store.counters[key], name, value)
    elif isinstance(store, RedisStore):
        redis_stores.tamper(store, key, figures)
    else:
        Counter.objects.using(alias_of(store)).filter(key=key).update(**figures)


def refused_by(decision: Decision) -> Sequence[Budget]:
    assert decision.outcome is Outcome.REFUSED
    return [room.budget for room in decision.rooms]
