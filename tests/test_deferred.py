"""Answers that come hours later, from a batch or a job in the background: kept, then settled."""

from __future__ import annotations

import asyncio
import datetime as dt
from decimal import Decimal

import pytest
from django.utils import timezone

from tests import stores
from token_allowance import allowance, conf, leases
from token_allowance.exceptions import AllowanceExceeded, ReservationError
from token_allowance.models import Limit, Price, Reservation

MODEL = "gpt-5-mini"
DAY = dt.timedelta(days=1)
HALF = Decimal("0.5")


@pytest.fixture(autouse=True)
def _priced(database: str) -> None:
    """Half a micro-dollar a token, as a batch costs; 100 micro-dollars in all."""
    Price.objects.using(database).create(
        provider="openai", model=MODEL, service_tier="batch", input_mtok=HALF, output_mtok=HALF
    )
    Limit.objects.using(database).create(window="total", unit="cost", amount=100)


def call(tokens: int = 100) -> allowance.call:
    return allowance.call(
        provider="openai",
        model=MODEL,
        service_tier="batch",
        input_tokens=tokens,
        max_output_tokens=0,
        tenant="acme",
    )


def defer(name: str, tokens: int = 100, hours: float = 24) -> None:
    with call(tokens) as one:
        one.defer(name, hours=hours)


def figures() -> tuple[int, int]:
    (budget,) = allowance.remaining(tenant="acme")
    return budget.used, budget.reserved


def row(database: str) -> Reservation:
    conf.store().drain()
    return Reservation.objects.using(database).get()


def let_pass(elapsed: dt.timedelta) -> None:
    stores.let_pass(conf.store(), elapsed.total_seconds())


def test_a_batch_holds_its_room_until_its_results_are_in(database: str) -> None:
    defer("batch_1", tokens=120)
    assert figures() == (0, 60)
    with pytest.raises(AllowanceExceeded):
        defer("batch_2", tokens=82)
    assert allowance.settle_deferred("batch_1", allowance.Usage(70, 9)) == "settled"
    assert figures() == (40, 0)
    assert (row(database).cost_exact, row(database).flags) == (Decimal("39.5"), [])


def test_settling_again_changes_nothing_and_another_figure_is_a_conflict(database: str) -> None:
    defer("batch_1")
    used = allowance.Usage(80)
    said = [
        allowance.settle_deferred("batch_1", used),
        asyncio.run(allowance.asettle_deferred("batch_1", used)),
        allowance.settle_deferred("batch_1", allowance.Usage(81)),
    ]
    assert said == ["settled", "repeat", "conflict"]
    assert figures() == (40, 0)
    assert (row(database).cost_micros, row(database).flags) == (40, ["conflict"])


def test_what_comes_after_the_lease_is_charged_all_the_same_once(database: str) -> None:
    defer("batch_1", hours=1)
    let_pass(dt.timedelta(minutes=61))
    assert leases.expire(timezone.now()) == 1
    assert figures() == (0, 0)
    said = [allowance.settle_deferred("batch_1", allowance.Usage(n)) for n in (80, 80, 90)]
    assert said == ["late", "repeat", "conflict"]
    assert figures() == (40, 0)
    assert row(database).state == "settled"
    assert sorted(row(database).flags) == ["conflict", "late"]
    assert conf.store().rebuild(timezone.now()) == []


def test_a_lease_that_was_charged_is_put_right_by_what_comes_later(database: str, settings) -> None:
    settings.TOKEN_ALLOWANCE = {**settings.TOKEN_ALLOWANCE, "ON_EXPIRE": "charge"}
    defer("batch_1", tokens=120, hours=1)
    let_pass(dt.timedelta(minutes=61))
    assert leases.expire(timezone.now()) == 1
    assert figures() == (60, 0)
    assert allowance.settle_deferred("batch_1", allowance.Usage(80)) == "late"
    assert figures() == (40, 0)


def test_an_id_that_nobody_deferred_is_an_error(database: str) -> None:
    with pytest.raises(ReservationError, match="batch_9"):
        allowance.settle_deferred("batch_9", allowance.Usage(1))


def test_an_id_stands_for_one_call(database: str) -> None:
    defer("batch_1", tokens=20)
    with pytest.raises(ReservationError, match="'batch_1' already stands for another call"):
        defer("batch_1", tokens=40)
    assert figures() == (20, 10)  # the second was sent, and is charged as reserved
    with call(20) as one:
        one.defer("batch_2")
        one.defer("batch_2", hours=48)
    assert allowance.settle_deferred("batch_1", allowance.Usage(2)) == "settled"
    assert allowance.settle_deferred("batch_2", allowance.Usage(2)) == "settled"
    assert figures() == (22, 0)


@pytest.mark.parametrize("years", [-20, 20])
def test_a_lease_follows_the_stores_clock_and_not_the_applications(
    database: str, monkeypatch, years: int
) -> None:
    now = dt.datetime.now(dt.UTC)
    monkeypatch.setattr(timezone, "now", lambda: now + years * 365 * DAY)
    defer("batch_1", hours=48)
    ends = row(database).expires_at
    assert dt.timedelta(0) <= ends - now - 2 * DAY < dt.timedelta(minutes=5)
    assert leases.expire(timezone.now()) == 0
    let_pass(dt.timedelta(hours=47))
    assert leases.expire(timezone.now()) == 0
    let_pass(dt.timedelta(hours=1, minutes=5))
    assert leases.expire(timezone.now()) == 1
