"""Limits and tenants that change in mid-window, with metered calls on either side of the change."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing

import pytest
from django.db import connections
from django.utils import timezone

from tests.stores import NOW, hold, spend, used
from token_allowance import conf, policy
from token_allowance.attribution import NOBODY
from token_allowance.exceptions import AllowanceExceeded
from token_allowance.limits import Attribution
from token_allowance.models import Counter, Limit, Tenant
from token_allowance.plans import Attempt, plan
from token_allowance.reservations import Reservation
from token_allowance.stores import postgresql
from token_allowance.stores.base import Decision, Outcome
from token_allowance.usage import Usage

only_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch):
    """Sets the application's clock; before the first use it stands at NOW."""

    def set_to(moment: dt.datetime) -> None:
        monkeypatch.setattr(timezone, "now", lambda: moment)

    set_to(NOW)
    return set_to


def limit(alias: str, amount: int, **rule: object) -> Limit:
    return Limit.objects.using(alias).create(unit="tokens", amount=amount, **rule)


def long_standing(alias: str, amount: int, **rule: object) -> None:
    """A limit that has counted since before this window."""
    limit(alias, amount, **rule)
    Limit.objects.using(alias).update(tracked_since=0)


def assert_full(tokens: int, **attribution: str) -> AllowanceExceeded:
    with pytest.raises(AllowanceExceeded) as caught:
        hold(tokens, **attribution)
    assert conf.store().rebuild(timezone.now()) == []
    return caught.value


def test_c70_a_limit_created_and_lowered_in_mid_window(database: str, clock) -> None:
    clock(NOW - dt.timedelta(days=1))
    spend(88)
    clock(NOW)
    spend(12)
    row = limit(database, 50)
    assert used() == [(12, 0, 38)]
    Limit.objects.using(database).filter(pk=row.pk).update(amount=10)
    assert used() == [(12, 0, 0)]
    assert assert_full(1).retry_after_seconds == 11.5 * 3600


def test_a_limit_that_is_raised_admits_the_very_next_call(database: str) -> None:
    row = limit(database, 50)
    spend(50)
    assert_full(1)
    Limit.objects.using(database).filter(pk=row.pk).update(amount=51)
    spend(1)
    assert_full(1)


def test_a_limit_that_was_off_for_a_while_counts_what_was_spent_meanwhile(database: str) -> None:
    row = limit(database, 101)
    spend(40)
    row.is_active = False
    row.save()
    spend(60)
    row.is_active = True
    row.save()
    assert used() == [(100, 0, 1)]
    assert_full(2)
    spend(1)


def test_a_limit_that_had_expired_and_is_prolonged_counts_the_gap(database: str, clock) -> None:
    limits = Limit.objects.using(database)
    row = limit(database, 101, window="total", expires_at=NOW + dt.timedelta(hours=1))
    spend(40)
    clock(NOW + dt.timedelta(hours=2))
    spend(60)
    limits.filter(pk=row.pk).update(expires_at=None)
    assert used() == [(100, 0, 1)]
    assert_full(2)


def test_a_limit_that_is_overridden_and_uncovered_again_has_counted_on(database: str) -> None:
    limit(database, 100, tenant="*")
    spend(40, tenant="acme")
    exact = limit(database, 1000, tenant="acme")
    assert used(tenant="acme") == [(40, 0, 960)]
    spend(60, tenant="acme")
    exact.delete()
    assert used(tenant="acme") == [(100, 0, 0)]
    assert_full(1, tenant="acme")
    spend(100, tenant="other")


def test_a_tenant_that_changes_its_plan_takes_its_spend_along(database: str) -> None:
    limit(database, 50, tenant="*", plan="free")
    limit(database, 100, tenant="*", plan="pro")
    tenants = Tenant.objects.using(database)
    tenants.create(key="acme", plan="free")
    spend(40, tenant="acme")
    assert_full(11, tenant="acme")
    tenants.update(plan="pro")
    spend(30, tenant="acme")
    tenants.update(plan="free")
    assert used(tenant="acme") == [(70, 0, 0)]


def test_a_tenant_that_joins_a_limited_plan_counts_what_it_spent_before(database: str) -> None:
    limit(database, 70, tenant="*", plan="pro")
    tenants = Tenant.objects.using(database)
    tenants.create(key="acme", plan="pro")
    spend(10, tenant="acme")
    tenants.update(plan="free")
    spend(50, tenant="acme")
    tenants.update(plan="pro")
    assert used(tenant="acme") == [(60, 0, 10)]
    assert_full(11, tenant="acme")


def test_a_tenant_that_changes_its_zone_is_held_to_the_day_of_that_zone(
    database: str, clock
) -> None:
    limit(database, 100, tenant="*")
    tenants = Tenant.objects.using(database)
    clock(dt.datetime(2026, 3, 4, 14, tzinfo=dt.UTC))
    spend(40, tenant="acme")
    clock(dt.datetime(2026, 3, 4, 15, 30, tzinfo=dt.UTC))  # 00:30 on the next day in Tokyo
    spend(5, tenant="acme")
    tenants.create(key="acme", time_zone="Asia/Tokyo")
    assert used(tenant="acme") == [(5, 0, 95)]
    spend(50, tenant="acme")
    tenants.update(time_zone="")
    assert used(tenant="acme") == [(95, 0, 5)]
    assert_full(6, tenant="acme")


@pytest.mark.parametrize(
    ("database", "way"),
    [("postgresql", "DELETE"), ("postgresql", "TRUNCATE"), ("sqlite", "DELETE")],
    indirect=["database"],
)
def test_a_tenant_that_is_deleted_falls_back_to_a_day_it_was_not_counted_in(
    database: str, way: str
) -> None:
    long_standing(database, 100, tenant="*")
    spend(40, tenant="acme")
    Tenant.objects.using(database).create(key="acme", time_zone="Asia/Tokyo")
    spend(50, tenant="acme")
    empty(database, "token_allowance_tenant", way)
    assert used(tenant="acme") == [(90, 0, 10)]
    with pytest.raises(AllowanceExceeded):
        hold(11, tenant="acme")


@pytest.mark.parametrize(
    ("database", "way"),
    [("postgresql", "DELETE"), ("postgresql", "TRUNCATE"), ("sqlite", "DELETE")],
    indirect=["database"],
)
def test_c61_a_lost_counter_of_a_limit_that_has_long_been_there_is_seeded(
    database: str, way: str
) -> None:
    long_standing(database, 30_000_000)
    spend(29_500_000)
    empty(database, "token_allowance_counter", way)
    assert_full(1_000_000)
    spend(400_000)


@pytest.mark.parametrize("database", ["postgresql", "sqlite"], indirect=True)
def test_a_window_that_begins_while_the_limit_counts_needs_no_look_at_the_ledger(
    database: str, clock
) -> None:
    long_standing(database, 100)
    spend(1)
    clock(timezone.now() + dt.timedelta(days=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("token_allowance.stores.database.DatabaseStore._seed", None)
        spend(100)
    assert Counter.objects.using(database).count() == 2


@only_postgresql
def test_a_call_under_way_while_its_limit_is_made_ends_in_the_limits_counter(
    database: str,
) -> None:
    """Its reserve has read the old limits and is not committed when the new one is (protocol 2)."""
    attempt = Attempt(provider="openai", model="m", input_tokens=80, max_output_tokens=0)
    early = Reservation(plan(attempt, Attribution(), (), policy.confirmed(), NOW), NOBODY, NOW)
    connection = connections[database].copy()
    with ThreadPoolExecutor(1) as other, closing(connection):
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            answer = postgresql.reserve(connection, early.request(early.amounts, 600, NOW))
            assert answer == Decision(Outcome.ADMITTED)
            limit(database, 100)
            waiting = other.submit(hold, 21)
            assert not wait([waiting], timeout=0.3).done
            cursor.execute("COMMIT")
        assert isinstance(waiting.exception(), AllowanceExceeded)
    spend(20)
    early.settle(Usage(70))
    assert used() == [(90, 0, 10)]
    assert_full(11)


def empty(alias: str, table: str, way: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(f"TRUNCATE {table}" if way == "TRUNCATE" else f"DELETE FROM {table}")
