"""Roll-ups where the ledger's own database counts: whatever happens, they equal the ledger."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.conf import LazySettings
from django.db.models import F

from tests.stores import (
    NOW,
    budget,
    configured,
    own_pool,
    request,
    reserve,
    spent,
    unspent,
)
from token_allowance import conf, marks, spend
from token_allowance.models import HourlySpend, Mark, Reservation
from token_allowance.stores import quarters, rollups
from token_allowance.stores.base import Request, Settlement, Store

SECOND, MINUTE, DAY = dt.timedelta(seconds=1), dt.timedelta(minutes=1), dt.timedelta(days=1)


@pytest.fixture(params=["postgresql", "sqlite"])
def alias(
    request: pytest.FixtureRequest, databases: None, django_db_blocker: Any, settings: LazySettings
) -> Iterator[str]:
    name = {"postgresql": "default"}.get(request.param, request.param)
    settings.TOKEN_ALLOWANCE = configured(name)
    with django_db_blocker.unblock(), own_pool(name):
        yield name


def begun(at: dt.datetime = NOW, **given: Any) -> Request:
    asked = request(budget(amount=10**9), at=at, lease=60, **({"cost": 10, "tokens": 3} | given))
    reserve(conf.store(), asked)
    return asked


def ended(asked: Request, at: dt.datetime, cost: int | None = 10, *flags: str) -> Settlement:
    settlement = spent(asked, cost, 3, *flags)
    settlement.row["settled_at"] = at.isoformat()
    settlement.row["cost_exact"] = None if cost is None else str(Decimal(cost) - Decimal("0.25"))
    return settlement


def by_the_ledger(alias: str) -> dict[Any, Any]:
    """The sums of all rows, as the drainer of another store would have moved them."""
    sums = rollups.Sums()
    for found in Reservation.objects.using(alias).values():
        row: dict[str, Any] = dict(found)
        for name in ("created_at", "settled_at"):
            row[name] = row[name] and row[name].isoformat()
        sums.move(None, row)
    return sums.moved()


def rolled_up(alias: str) -> dict[Any, Any]:
    found = {}
    for line in HourlySpend.objects.using(alias):
        names = (getattr(line, name) for name in rollups.NAMES)
        sums = tuple(getattr(line, name) for name in rollups.SUMS)
        found[(int(line.starts_at.timestamp()), *names)] = sums
    return found


def test_a_call_is_in_its_quarter_within_a_minute_and_only_once(alias: str) -> None:
    conf.store().settle(ended(begun(feature="chat"), NOW + 5 * SECOND, 10, "estimated"))
    assert spend.fold(NOW + MINUTE) == 1
    assert spend.fold(NOW + 2 * MINUTE) == 0
    line = HourlySpend.objects.using(alias).get()
    assert (line.starts_at, line.feature, line.calls) == (NOW, "chat", 1)
    assert (line.cost_micros, line.cost_exact) == (10, Decimal("9.75"))
    assert (line.estimated_calls, line.estimated_micros, line.unpriced_calls) == (1, 10, 0)


def test_any_history_adds_up_to_the_ledger(alias: str) -> None:
    """Calls that end at once, late, days later, twice, never, or otherwise than was thought."""
    chance, store, now = random.Random(5), conf.store(), NOW
    open_calls: list[Request] = []
    for _ in range(12):
        for _ in range(chance.randrange(12)):
            names = {"tenant": chance.choice("ab"), "feature": chance.choice(["chat", ""])}
            asked = begun(now - chance.randrange(60) * SECOND, model=chance.choice("mn"), **names)
            open_calls.append(asked)
        for _ in range(chance.randrange(len(open_calls) + 1)):
            asked = chance.choice(open_calls)
            _end(chance, store, asked, now)
        if chance.random() < 0.3:
            Reservation.objects.using(alias).update(expires_at=F("expires_at") - 2 * DAY)
            store.expire(now, charge=chance.random() < 0.5)
        now += chance.choice([MINUTE, 20 * MINUTE, DAY])
        spend.fold(now)
        assert rolled_up(alias) == by_the_ledger(alias)
    assert len(rolled_up(alias)) > 10


def _end(chance: random.Random, store: Store, asked: Request, now: dt.datetime) -> None:
    if chance.random() < 0.2:
        given_back = unspent(asked)
        given_back.row["settled_at"] = now.isoformat()
        store.release(given_back)
    else:
        flags = chance.choice([(), ("estimated",), ("interrupted", "uncertain")])
        store.settle(ended(asked, now, chance.choice([None, 0, 7, 12_345_678]), *flags))


def test_a_charge_that_is_taken_back_leaves_no_trace(alias: str) -> None:
    store, asked = conf.store(), begun()
    Reservation.objects.using(alias).update(expires_at=NOW - DAY)
    assert store.expire(NOW + MINUTE, charge=True) == 1
    spend.fold(NOW + MINUTE)
    assert HourlySpend.objects.using(alias).get().cost_micros == 10
    given_back = unspent(asked)
    given_back.row["settled_at"] = (NOW + 5 * MINUTE).isoformat()
    store.release(given_back)
    spend.fold(NOW + 6 * MINUTE)
    assert not HourlySpend.objects.using(alias).exists()


def test_a_settlement_that_commits_after_a_later_one_is_not_missed(alias: str) -> None:
    first, second = begun(), begun(NOW - 40 * MINUTE)
    conf.store().settle(ended(second, NOW + 3 * MINUTE))
    spend.fold(NOW + 4 * MINUTE)
    conf.store().settle(ended(first, NOW + MINUTE))  # its transaction took this long
    spend.fold(NOW + 5 * MINUTE)
    assert rolled_up(alias) == by_the_ledger(alias)
    assert HourlySpend.objects.using(alias).count() == 2


def test_what_waited_out_a_standstill_is_found_after_it(alias: str) -> None:
    spend.fold(NOW)
    asked = begun(NOW)
    back = NOW + dt.timedelta(hours=2)
    spend.fold(back)
    conf.store().settle(ended(asked, NOW + 70 * MINUTE))  # made while the database was away
    spend.fold(back + MINUTE)
    assert rolled_up(alias) == by_the_ledger(alias) != {}
    for minute in range(2, 9):
        spend.fold(back + minute * MINUTE)
    assert marks.read(alias, spend.JOB).at == back + 8 * MINUTE


def test_a_daily_look_mends_what_no_minute_saw(alias: str) -> None:
    conf.store().settle(ended(begun(), NOW))
    spend.fold(NOW + 20 * MINUTE)
    HourlySpend.objects.using(alias).update(calls=F("calls") + 1)
    spend.fold(NOW + 21 * MINUTE)
    assert rolled_up(alias) != by_the_ledger(alias)
    assert spend.verify(NOW + DAY) == 1
    assert rolled_up(alias) == by_the_ledger(alias)


def test_killed_between_two_quarters_it_is_done_again(
    alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for minutes in (0, 20, 40):
        conf.store().settle(ended(begun(NOW + minutes * MINUTE), NOW + 41 * MINUTE))
    fold, calls = quarters.fold, []

    def killed(*given: Any, **named: Any) -> int:
        calls.append(named["start"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return fold(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(quarters, "fold", killed)
        with pytest.raises(KeyboardInterrupt):
            spend.fold(NOW + 42 * MINUTE)
    assert HourlySpend.objects.using(alias).count() == 1
    assert Mark.objects.using(alias).get(job=spend.JOB).at is None
    assert spend.fold(NOW + 43 * MINUTE) == 2
    assert rolled_up(alias) == by_the_ledger(alias)


def test_names_that_are_words_of_sql_or_empty_are_values(alias: str) -> None:
    hostile = "'; DROP TABLE x; --%s"
    conf.store().settle(ended(begun(tenant=hostile, user="ü☃", model="null"), NOW))
    spend.fold(NOW + MINUTE)
    assert rolled_up(alias) == by_the_ledger(alias) != {}


@pytest.mark.parametrize("store", ["memory", "redis"], indirect=True)
def test_a_store_that_moves_them_itself_is_left_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conf, "store", lambda: store)
    assert spend.fold(NOW) == 0
    assert spend.verify(NOW) == 0
