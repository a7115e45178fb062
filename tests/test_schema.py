"""Triggers and functions: installed by migrations, again after migrate, and reversed."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections

from token_allowance import schema
from token_allowance.models import Limit, PolicyVersion, Tenant


@pytest.mark.django_db
def test_sqlmigrate_prints_the_functions() -> None:
    out = io.StringIO()
    call_command("sqlmigrate", "token_allowance", "0002", stdout=out)
    assert "token_allowance_reserve_v1" in out.getvalue()


@pytest.mark.django_db(databases=["default", "sqlite"], transaction=True)
@pytest.mark.parametrize("alias", ["default", "sqlite"])
def test_installing_again_changes_nothing(alias: str) -> None:
    schema.install(connections[alias])
    schema.install(connections[alias])
    Limit.objects.using(alias).create(amount=5)
    assert PolicyVersion.objects.using(alias).get(kind="limits").number > 10**15


@pytest.mark.django_db(transaction=True)
def test_migrate_mends_a_database_that_lost_its_functions() -> None:
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION token_allowance_extend_v1")
    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_proc WHERE proname = 'token_allowance_extend_v1'")
        assert cursor.fetchone() == (1,)


COUNTS = [
    ({"user": "u1"}, True),
    ({"time_zone": "Asia/Tokyo"}, True),
    ({"plan": "pro"}, True),
    ({"window": "month"}, True),
    ({"unit": "calls"}, True),
    ({"amount": 9}, False),
    ({"mode": "observe"}, False),
]


@pytest.mark.django_db(databases=["default", "sqlite"], transaction=True)
@pytest.mark.parametrize("alias", ["default", "sqlite"])
@pytest.mark.parametrize(("change", "starts_anew"), COUNTS)
def test_tracking_starts_anew_only_when_what_is_counted_changes(
    alias: str, change: dict[str, Any], starts_anew: bool
) -> None:
    limits = Limit.objects.using(alias)
    row = limits.create(tenant="*", user="*", amount=5)
    before = limits.get().tracked_since
    assert before > 10**15
    limits.filter(pk=row.pk).update(**change)
    assert (limits.get().tracked_since > before) is starts_anew


@pytest.mark.django_db(databases=["default", "sqlite"], transaction=True)
@pytest.mark.parametrize("alias", ["default", "sqlite"])
def test_tracking_starts_anew_when_a_limit_is_enabled_again(alias: str) -> None:
    limits = Limit.objects.using(alias)
    limits.create(amount=5)
    limits.update(is_active=False)
    before = limits.get().tracked_since
    limits.update(is_active=True)
    assert limits.get().tracked_since > before


@pytest.mark.django_db(databases=["default", "sqlite"], transaction=True)
@pytest.mark.parametrize("alias", ["default", "sqlite"])
def test_a_tenant_s_plan_and_zone_move_its_mark_and_its_deletion_that_of_its_limits(
    alias: str,
) -> None:
    tenants, limits = Tenant.objects.using(alias), Limit.objects.using(alias)
    limits.create(tenant="*", amount=5)
    tenants.create(key="acme")
    first, limit = tenants.get().tracked_since, limits.get().tracked_since
    tenants.update(name="Acme")
    assert tenants.get().tracked_since == first
    tenants.update(plan="pro")
    assert tenants.get().tracked_since > first
    tenants.all().delete()
    assert limits.get().tracked_since > limit
