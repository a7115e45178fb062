"""Spend explorer: sums that agree, whatever way they are cut."""

from __future__ import annotations

import csv
import datetime as dt
import io

import pytest
from django.utils import timezone

from tests import dashboards
from token_allowance import spend
from token_allowance.models import HourlySpend, Reservation
from token_allowance_dashboard import charts, exports, periods, spending
from token_allowance_dashboard.spending import Scope

NOW = dt.datetime(2026, 11, 30, 12, 7, tzinfo=dt.UTC)
ZONES = ("UTC", "Asia/Kathmandu", "America/St_Johns")

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _now(monkeypatch):
    monkeypatch.setattr(timezone, "now", lambda: NOW)


@pytest.fixture
def ana(client):
    client.force_login(dashboards.owner())
    return client


def test_the_page_says_what_was_spent_and_by_what(ana):
    total = dashboards.history(NOW, days=6)
    page = ana.get("/allowance/spend/", {"range": "7d"})
    assert page.status_code == 200
    assert page.context["total"].cost_micros == total
    assert {line.key for line in page.context["lines"]} == {"chat", "agent", "digest"}
    assert sum(line.figures.cost_micros for line in page.context["lines"]) == total


@pytest.mark.parametrize("zone", ZONES)
def test_the_sum_of_days_is_the_range_in_every_zone(zone):
    dashboards.history(NOW, days=20, calls=300)
    period = periods.of({"range": "30d", "zone": zone}, NOW)
    at = spending.edge(NOW)
    parts = [(start, end) for _, start, end in period.days()]
    found = spending.buckets(parts, Scope(), [], at)
    by_day = [bucket[()].cost_micros for bucket in found if bucket]
    assert sum(by_day) == spending.total(period, Scope(), at).cost_micros > 0
    for (start, end), bucket in zip(parts, found, strict=True):
        rows = Reservation.objects.filter(created_at__gte=start, created_at__lt=end)
        expected = sum(rows.values_list("cost_micros", flat=True))
        assert (bucket[()].cost_micros if bucket else 0) == expected


def test_what_is_not_rolled_up_yet_is_counted_once(ana):
    dashboards.history(NOW, days=3)
    Reservation.objects.bulk_create(
        [dashboards.call(NOW - dt.timedelta(seconds=n + 1), flags=["estimated"]) for n in range(5)]
    )
    expected = sum(Reservation.objects.values_list("cost_micros", flat=True))
    period = periods.of({"range": "7d"}, NOW)
    before = spending.total(period, Scope(), spending.edge(NOW))
    assert (before.cost_micros, before.estimated_calls) == (expected, 5)
    spend.fold(NOW)
    after = spending.total(period, Scope(), spending.edge(NOW))
    assert after == before


def test_c88_deleted_users_and_unpriced_calls_are_in_the_table(ana):
    micros = {"1": 3_000_000, "2": 5_000_000, "": 2_000_000}
    at = NOW - dt.timedelta(days=1)
    rows = [dashboards.call(at, user=u, cost_micros=m, cost_exact=m) for u, m in micros.items()]
    rows.append(dashboards.call(at, user="1", cost_micros=None, cost_exact=None))
    Reservation.objects.bulk_create(rows)
    spend.fold(NOW)
    page = ana.get("/allowance/spend/", {"group": "user", "range": "7d"})
    lines = {line.key: line.figures.cost_micros for line in page.context["lines"]}
    assert lines == micros
    assert page.context["total"].cost_micros == 10_000_000
    assert "1 unpriced call" in page.content.decode()


def test_c97_totals_are_of_everything_and_not_of_what_is_shown(ana):
    at = NOW - dt.timedelta(days=1)
    Reservation.objects.bulk_create(
        dashboards.call(at, user=f"u{n}", cost_micros=1_000, cost_exact=1_000) for n in range(1_250)
    )
    spend.fold(NOW)
    page = ana.get("/allowance/spend/", {"group": "user", "range": "7d"})
    assert page.context["total"].cost_micros == 1_250_000
    assert page.context["total"].calls == 1_250
    assert len(page.context["lines"]) == 11
    assert page.context["lines"][-1].others == 1_240


def test_c95_a_csv_runs_nothing_and_keeps_numbers(ana):
    at = NOW - dt.timedelta(days=1)
    hostile = ['=HYPERLINK("http://x","y")', "+1", "@a", "-2"]
    Reservation.objects.bulk_create(dashboards.call(at, feature=name) for name in hostile)
    spend.fold(NOW)
    answer = ana.get("/allowance/spend/", {"group": "feature", "range": "7d", "format": "csv"})
    lines = list(csv.reader(io.StringIO(b"".join(answer.streaming_content).decode())))
    assert sorted(line[0] for line in lines[1:]) == sorted(f"'{name}" for name in hostile)
    assert exports.safe(-5) == -5


def test_a_csv_needs_its_permission(client):
    client.force_login(dashboards.person("bo", "view_dashboard"))
    assert client.get("/allowance/spend/", {"format": "csv"}).status_code == 403
    page = client.get("/allowance/spend/")
    assert page.status_code == 200


def test_staff_of_some_tenants_see_only_theirs(client, settings):
    dashboards.history(NOW, days=3)
    settings.TOKEN_ALLOWANCE = {"STAFF_TENANT_FILTER": lambda user: ["acme"]}
    client.force_login(dashboards.owner())
    page = client.get("/allowance/spend/", {"range": "7d", "group": "tenant"})
    assert [line.key for line in page.context["lines"]] == ["acme"]
    own = sum(Reservation.objects.filter(tenant="acme").values_list("cost_micros", flat=True))
    assert page.context["total"].cost_micros == own
    other = client.get("/allowance/spend/", {"range": "7d", "tenant": "globex"})
    assert other.context["total"].calls == 0


@pytest.mark.parametrize(
    "query",
    ["range=x", "range=custom&from=2026-99-01&to=", "zone=Mars", "group=pk", "feature=%00",
     "range=custom&from=0001-01-01&to=9999-12-31"],
)  # fmt: skip
def test_nonsense_in_the_address_is_no_error(ana, query):
    assert ana.get(f"/allowance/spend/?{query}").status_code == 200


def test_the_number_of_queries_does_not_grow(ana, django_assert_num_queries):
    dashboards.history(NOW, days=3, calls=20)
    ana.get("/allowance/spend/")
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as few:
        ana.get("/allowance/spend/")
    dashboards.history(NOW, days=3, calls=500, seed=2)
    with CaptureQueriesContext(connection) as many:
        ana.get("/allowance/spend/")
    assert len(many) == len(few) < 20


def test_a_chart_says_in_words_what_it_shows():
    chart = charts.stacked("c", "Spent", ["1 Nov", "2 Nov"], [("chat", [1_000_000, 3_000_000])])
    assert chart.description == "Spent: $4.00 in all, most in 2 Nov with $3.00."
    assert chart.rows == (("1 Nov", "$1.00", "$1.00"), ("2 Nov", "$3.00", "$3.00"))


def test_an_hourly_spend_row_needs_no_ledger(ana):
    HourlySpend.objects.create(
        starts_at=NOW - dt.timedelta(days=2), tenant="gone", feature="chat", calls=3,
        cost_micros=7_000_000, cost_exact=7_000_000,
    )  # fmt: skip
    spend.fold(NOW)
    page = ana.get("/allowance/spend/", {"range": "7d"})
    assert page.context["total"].cost_micros == 7_000_000
