"""Races for one budget in Redis, Valkey and a Cluster of three: SDK clients in four processes.

What reached the provider is the truth.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from project.provider import FIXED_COST, Reply
from tests import redis_stores
from tests.racers import provider, racers
from tests.races import MODEL
from tests.redis_servers import cluster, valkey
from token_allowance import allowance, conf
from token_allowance.models import Limit, Price, Reservation

__all__ = ["cluster", "provider", "racers", "valkey"]

CALL_MICROS = 500  # 100 tokens in at $1 and 100 out at $4 per million
REPEATS = {"redis": 10, "valkey": 3, "cluster": 3}

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=list(REPEATS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(request, kind, settings, racers) -> Iterator[dict[str, Any]]:
    """The STORE setting of each kind of server, with the price of the model in the database."""
    given = {} if kind == "redis" else {"URL": request.getfixturevalue(kind).url}
    with redis_stores.configured(**given) as configuration:
        settings.TOKEN_ALLOWANCE = configuration
        Price.objects.create(
            provider="openai", model=MODEL, input_mtok=Decimal(1), output_mtok=Decimal(4)
        )
        yield configuration["STORE"]
        racers.rest("default")


def settled() -> int:
    conf.store().drain()
    rows = Reservation.objects.all()
    assert rows.filter(state="settled").count() == rows.count()
    return rows.count()


@pytest.mark.parametrize("unit", ["calls", "cost"])
def test_exactly_fifty_of_two_hundred_calls_reach_the_provider(
    racers, provider, kind, store, unit
) -> None:
    amount = 50 if unit == "calls" else 50 * CALL_MICROS
    Limit.objects.create(feature="*", window="month", unit=unit, amount=amount)
    for repeat in range(REPEATS[kind]):
        feature = f"{unit}-{repeat}"
        provider.reset()
        provider.script(default=FIXED_COST)
        callers = [[{"feature": feature, "tokens": 100}]] * 200
        seen = racers.race("default", "chat", callers, store)
        assert provider.totals().received == 50
        assert seen == {"admitted": 50, "refused": 150}
        (budget,) = allowance.remaining(feature=feature)
        assert (budget.used, budget.reserved) == (amount, 0)
    assert settled() == 50 * REPEATS[kind]
    assert conf.store().rebuild(timezone.now()) == []


def test_limits_of_different_shapes_do_not_drift(racers, provider, kind, store) -> None:
    """Attributions and answers are random; at least 99.9 % of what is tight can be used."""
    Limit.objects.create(tenant="*", unit="cost", window="day", amount=60_000)
    Limit.objects.create(
        tenant="*", user="*", unit="tokens", window="rolling", rolling_seconds=3600, amount=5_000
    )
    Limit.objects.create(feature="*", unit="calls", window="month", amount=150)
    provider.reset()
    provider.script(
        lambda request: Reply(
            input_tokens=random.randint(1, 100),
            output_tokens=random.randint(1, 100),
            delay_seconds=random.random() / 50,
        )
    )
    names = {"tenant": "abc", "user": "uvwxyz", "feature": "fgh"}
    callers = [
        [{"tokens": 100} | {n: random.choice(v) for n, v in names.items()} for _ in range(4)]
        for _ in range(200)
    ]
    seen = racers.race("default", "chat", callers, store)
    assert seen["admitted"] == provider.totals().received == settled()
    assert seen["admitted"] + seen["refused"] == 800
    assert seen["refused"] > 100
    assert conf.store().rebuild(timezone.now()) == []
    for feature in "fgh":
        (calls,) = allowance.remaining(feature=feature)
        assert (calls.used <= 150, calls.reserved) == (True, 0)
