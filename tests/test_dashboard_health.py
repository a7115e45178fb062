"""Health: what would make the figures wrong is said where the figures are."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from tests import dashboards
from token_allowance import conf, spend
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import Limit, Reservation

pytestmark = pytest.mark.django_db


@pytest.fixture
def ana(client):
    client.force_login(dashboards.owner())
    return client


def figures(page):
    return {name: value for name, value, _ in page.context["figures"]}


def test_it_says_what_doctor_says_and_counts_what_hangs(ana):
    now = timezone.now()
    Limit.objects.create(amount=0)
    spend.fold(now)
    hanging = {"state": "reserved", "settled_at": None, "cost_micros": None, "cost_exact": None}
    Reservation.objects.bulk_create(
        [
            dashboards.call(now - dt.timedelta(hours=1), **hanging),
            dashboards.call(now, **hanging),
            dashboards.call(now, reserved_micros=1),
        ]
    )
    page = ana.get("/allowance/health/")
    assert figures(page)["calls in flight"] == "2"
    assert figures(page)["overdue"] == "1"
    assert figures(page)["above their reservation"] == "1"
    said = page.content.decode()
    assert "it admits nothing" in said
    assert "There are no prices" in said
    assert page.context["problems"] >= 1


def test_a_store_that_is_down_is_said_and_is_no_error(ana, monkeypatch):
    def down(budgets):
        raise StoreUnavailable("no store")

    monkeypatch.setattr(conf.store(), "usage", down)
    page = ana.get("/allowance/health/")
    assert page.status_code == 200
    assert figures(page)["store"] == "cannot be asked"
    assert "The store cannot be asked" in page.content.decode()


def test_a_monitor_gets_json_and_503_while_something_is_broken(ana, monkeypatch):
    broken = ana.get("/allowance/health.json")
    assert broken.status_code == 503
    assert not broken.json()["ok"]
    monkeypatch.setattr("token_allowance.management.subcommands.doctor.CHECKS", ())
    assert ana.get("/allowance/health.json").json()["ok"]


def test_staff_of_some_tenants_see_nothing_of_the_whole(client, settings):
    settings.TOKEN_ALLOWANCE = {"STAFF_TENANT_FILTER": lambda user: ["acme"]}
    client.force_login(dashboards.owner())
    assert "figures" not in client.get("/allowance/health/").context
    assert client.get("/allowance/health.json").status_code == 403
