"""Whoever edits the policy, and however: the very next reserve obeys it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from decimal import Decimal

import pytest
from django.db import connections, transaction
from django.utils import timezone

from tests.stores import hold, spend, used
from token_allowance import conf
from token_allowance.exceptions import AllowanceExceeded, StoreUnavailable, SwitchEngaged
from token_allowance.limits import microseconds
from token_allowance.models import Limit, Price, Switch, Tenant
from token_allowance.reservations import Reservation

only_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
only_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


def execute(alias: str, sql: str) -> None:
    """As psql would: on a connection that this app knows nothing of."""
    connection = connections[alias].copy()
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql)
    finally:
        connection.close()


def limits(alias: str):
    return Limit.objects.using(alias)


def bulk_update(alias: str) -> None:
    row = limits(alias).get()
    row.amount = 5
    limits(alias).bulk_update([row], ["amount"])


def save(alias: str) -> None:
    row = limits(alias).get()
    row.amount = 5
    row.save()


TIGHTER: dict[str, Callable[[str], object]] = {
    "save": save,
    "update()": lambda alias: limits(alias).update(amount=5),
    "bulk_update": bulk_update,
    "create": lambda alias: limits(alias).create(unit="tokens", amount=5, window="hour"),
    "bulk_create": lambda alias: limits(alias).bulk_create(
        [Limit(unit="tokens", amount=5, feature="*"), Limit(unit="tokens", amount=5, window="week")]
    ),
    "SQL update": lambda alias: execute(alias, "UPDATE token_allowance_limit SET amount = 5"),
    "SQL insert": lambda alias: execute(
        alias,
        'INSERT INTO token_allowance_limit (tenant, "user", session, feature, model, plan, '
        '"window", anchor_day, time_zone, unit, amount, mode, is_active, tracked_since, '
        "created_at) SELECT tenant, \"user\", session, feature, model, plan, 'month', anchor_day, "
        "time_zone, unit, 5, mode, is_active, tracked_since, created_at FROM token_allowance_limit",
    ),
}
LOOSER: dict[str, Callable[[str], object]] = {
    "delete()": lambda alias: limits(alias).get().delete(),
    "queryset delete()": lambda alias: limits(alias).all().delete(),
    "disable": lambda alias: limits(alias).update(is_active=False),
    "observe": lambda alias: limits(alias).update(mode="observe"),
    "SQL delete": lambda alias: execute(alias, "DELETE FROM token_allowance_limit"),
}


@pytest.mark.parametrize("edit", TIGHTER.values(), ids=TIGHTER)
def test_a_limit_made_tighter_refuses_the_very_next_call(
    database: str, edit: Callable[[str], object]
) -> None:
    limits(database).create(unit="tokens", amount=100)
    spend(5)
    edit(database)
    with pytest.raises(AllowanceExceeded):
        hold(1)
    assert conf.store().rebuild(timezone.now()) == []


@pytest.mark.parametrize("edit", LOOSER.values(), ids=LOOSER)
def test_a_limit_that_goes_away_admits_the_very_next_call(
    database: str, edit: Callable[[str], object]
) -> None:
    limits(database).create(unit="tokens", amount=5)
    with pytest.raises(AllowanceExceeded):
        hold(6)
    edit(database)
    spend(6)


@only_postgresql
def test_limits_that_are_truncated_admit_the_very_next_call(database: str) -> None:
    limits(database).create(unit="tokens", amount=5)
    with pytest.raises(AllowanceExceeded):
        hold(6)
    execute(database, "TRUNCATE token_allowance_limit CASCADE")
    spend(6)


def test_a_switch_a_tenant_and_a_price_are_obeyed_as_soon_as_they_are_written(
    database: str,
) -> None:
    spend(1, tenant="acme")
    switch = Switch.objects.using(database).create(tenant="acme", reason="r", by="b")
    with pytest.raises(SwitchEngaged):
        hold(1, tenant="acme")
    Switch.objects.using(database).filter(pk=switch.pk).delete()
    Tenant.objects.using(database).bulk_create([Tenant(key="acme", is_active=False)])
    with pytest.raises(SwitchEngaged):
        hold(1, tenant="acme")
    Tenant.objects.using(database).update(is_active=True)
    assert hold(3, tenant="acme").amounts.cost_micros is None
    Price.objects.using(database).create(
        provider="openai", model="m", input_mtok=Decimal(2), output_mtok=Decimal(2)
    )
    assert hold(3, tenant="acme").amounts.cost_micros == 6


@only_postgresql
def test_an_edit_that_is_not_committed_is_not_seen_and_one_undone_never_was(
    database: str,
) -> None:
    limits(database).create(unit="tokens", amount=100)
    spend(1)
    with transaction.atomic(using=database):
        limits(database).update(amount=0)
        spend(1)  # on a connection of its own: it does not wait for its caller (protocol 13)
        transaction.set_rollback(True, using=database)
    spend(1)
    with transaction.atomic(using=database):
        limits(database).update(amount=0)
    with pytest.raises(AllowanceExceeded):
        hold(1)


@only_sqlite
def test_an_edit_seen_in_its_own_transaction_is_forgotten_when_that_is_undone(
    database: str,
) -> None:
    limits(database).create(unit="tokens", amount=100)
    spend(1)
    with transaction.atomic(using=database):
        limits(database).update(amount=0)
        with pytest.raises(AllowanceExceeded):
            hold(1)
        transaction.set_rollback(True, using=database)
    spend(99)
    assert used() == [(100, 0, 0)]


def test_versions_follow_the_clock_so_that_none_comes_back(database: str) -> None:
    with connections[database].cursor() as cursor:
        cursor.execute("DELETE FROM token_allowance_policyversion")
        before = microseconds(timezone.now())
        limits(database).create(unit="tokens", amount=100)
        cursor.execute("SELECT number FROM token_allowance_policyversion WHERE kind = 'limits'")
        (number,) = cursor.fetchone()
    assert abs(number - before) < 60_000_000
    with pytest.raises(AllowanceExceeded):
        hold(101)


def test_an_edit_storm_starves_nobody(database: str) -> None:
    row = limits(database).create(unit="tokens", amount=10**6)
    done = threading.Event()
    edits: list[int] = []
    held: list[Reservation] = []

    def storm() -> None:
        try:
            while not done.wait(0.005):
                amount = 10**6 + len(edits) % 2
                limits(database).filter(pk=row.pk).update(amount=amount)
                edits.append(amount)
        finally:
            connections[database].close()

    editor = threading.Thread(target=storm)
    editor.start()
    try:
        while len(edits) < 20 and len(held) < 5000:
            held.append(hold(10))
    except StoreUnavailable as error:
        pytest.fail(f"{error} after {len(edits)} edits")
    finally:
        done.set()
        editor.join(10)
    assert len(edits) >= 20
    total = 10 * len(held)
    assert used() == [(0, total, limits(database).get().amount - total)]
    for reservation in held:
        reservation.release()
    assert conf.store().rebuild(timezone.now()) == []
