"""Overview: will the month's money last, and where does it go?"""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests import dashboards
from token_allowance import conf, spend
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import Alert, AlertRule, Limit, Refusal, Reservation
from token_allowance_dashboard.forecast import forecast

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
END = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _now(monkeypatch):
    monkeypatch.setattr(timezone, "now", lambda: NOW)


@pytest.fixture
def ana(client):
    client.force_login(dashboards.owner())
    return client


def test_a_forecast_is_the_pace_of_seven_days_with_its_slowest_and_fastest():
    found = forecast(20_000_000, [9, 1_000_000, 1_000_000, 1_000_000, 2_000_000, 1_000_000,
                                  1_000_000, 0], NOW, END, 25_000_000)  # fmt: skip
    assert found.days == 7
    assert found.micros == 20_000_000 + 1_000_000 * 19 // 2
    assert (found.least_micros, found.most_micros) == (20_000_000, 39_000_000)
    assert found.by_day[-1] == found.micros
    assert len(found.by_day) == 10
    assert found.reaches_at == NOW + dt.timedelta(days=5)


def test_nothing_is_foretold_of_less_than_three_days():
    assert forecast(5, [1, 1], NOW, END) is None


def test_the_verdict_says_whether_the_month_will_last(ana):
    Limit.objects.create(window="month", unit="cost", amount=25_000_000)
    at = NOW - dt.timedelta(minutes=1)
    rows = [
        dashboards.call(at - dt.timedelta(days=day), cost_micros=1_000_000, cost_exact=1_000_000)
        for day in range(20)
    ]
    Reservation.objects.bulk_create(rows)
    spend.fold(NOW)
    page = ana.get("/allowance/")
    assert page.context["spent"].cost_micros == 20_000_000
    assert page.context["verdict"].startswith(
        "On course for $29.50 of $25.00 this month: reaches the limit 26 Nov 12:00."
    )
    assert "chat is 100 % of 24 hours" in page.context["verdict"]
    assert "limit is at $25.00" in page.content.decode()


def test_tiles_alerts_and_refusals(ana):
    Refusal.objects.create(starts_at=NOW, code="exhausted", calls=212, first_at=NOW, last_at=NOW)
    hanging = {"state": "reserved", "settled_at": None, "cost_micros": None, "cost_exact": None}
    dashboards.call(NOW, reserved_micros=610_000, **hanging).save()
    rule = AlertRule.objects.create(kind="budget", name="budgets")
    Alert.objects.create(rule=rule, target="t", severity="critical", title="[BLOCKED] acme")
    page = ana.get("/allowance/")
    said = page.content.decode()
    assert page.context["refused"] == 212
    assert (page.context["in_flight"], page.context["reserved_micros"]) == (1, 610_000)
    assert "[BLOCKED] acme" in said
    assert "First steps" in said


def test_a_store_that_is_down_is_no_error(ana, monkeypatch):
    def down(budgets):
        raise StoreUnavailable("no store")

    Limit.objects.create(window="month", unit="cost", amount=25_000_000)
    dashboards.call(NOW).save()
    monkeypatch.setattr(conf.store(), "usage", down)
    page = ana.get("/allowance/")
    assert page.status_code == 200
    assert page.context["close"] is None


def test_staff_of_some_tenants_see_nothing_of_others(client, settings):
    settings.TOKEN_ALLOWANCE = {"STAFF_TENANT_FILTER": lambda user: ["acme"]}
    Limit.objects.create(window="month", unit="cost", amount=25_000_000)
    Limit.objects.create(tenant="*", window="month", unit="cost", amount=25_000_000)
    Reservation.objects.bulk_create(
        [dashboards.call(NOW - dt.timedelta(hours=2), tenant=name) for name in ("acme", "globex")]
    )
    spend.fold(NOW)
    client.force_login(dashboards.owner())
    page = client.get("/allowance/")
    assert page.context["spent"].cost_micros == 650
    assert page.context["limit"] is None
    assert page.context["checklist"] == []
    assert "globex" not in page.content.decode()


def test_the_number_of_queries_does_not_grow(ana):
    def queries():
        with CaptureQueriesContext(connection) as made:
            ana.get("/allowance/")
        return len(made)

    Limit.objects.create(tenant="*", window="month", unit="cost", amount=25_000_000)
    dashboards.history(NOW, days=5, calls=30)
    queries()
    few = queries()
    dashboards.history(NOW, days=20, calls=300, seed=2)
    queries()
    assert queries() == few < 50
