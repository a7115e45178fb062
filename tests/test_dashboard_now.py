"""Spending now: who spends at this moment, against what is usual, and what holds money."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests import dashboards
from token_allowance.models import HourlySpend, Refusal, Reservation

NOW = dt.datetime(2026, 11, 30, 12, 7, tzinfo=dt.UTC)
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _now(monkeypatch):
    monkeypatch.setattr(timezone, "now", lambda: NOW)


@pytest.fixture
def ana(client):
    client.force_login(dashboards.owner())
    return client


def ago(**length):
    return NOW - dt.timedelta(**length)


def test_the_dearest_comes_first_with_what_it_holds_and_what_was_refused(ana):
    rows = [dashboards.call(ago(minutes=3), feature="chat") for _ in range(2)]
    rows += [dashboards.call(ago(minutes=4), feature="agent", user=f"u{n}") for n in range(9)]
    rows.append(
        dashboards.call(
            ago(minutes=2), feature="agent", state="reserved", settled_at=None, cost_micros=None,
            cost_exact=None, reserved_micros=40_000,
        )
    )  # fmt: skip
    rows.append(dashboards.call(ago(minutes=90), feature="old"))
    Reservation.objects.bulk_create(rows)
    Refusal.objects.create(
        starts_at=ago(minutes=2), code="exhausted", tenant="acme", feature="agent",
        model="gpt-5-mini", calls=7, first_at=ago(minutes=2), last_at=ago(minutes=2),
    )  # fmt: skip
    page = ana.get("/allowance/now/")
    first, second = page.context["spenders"]
    assert (first.feature, first.calls, first.in_flight, first.refused) == ("agent", 10, 1, 7)
    assert (first.micros, first.reserved_micros) == (9 * 650, 40_000)
    assert (second.feature, second.calls) == ("chat", 2)
    assert page.context["total_micros"] == 11 * 650


def test_a_row_says_how_many_times_the_usual_it_is(ana):
    for day in range(1, 8):
        HourlySpend.objects.create(
            starts_at=dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC) - dt.timedelta(days=day),
            tenant="acme", feature="agent", model="gpt-5-mini", calls=1, cost_micros=650,
        )  # fmt: skip
    Reservation.objects.bulk_create(
        dashboards.call(ago(minutes=4), feature="agent") for _ in range(14)
    )
    (one,) = ana.get("/allowance/now/", {"minutes": 15}).context["spenders"]
    assert one.times_usual == "×14.0"


def test_nothing_now_says_when_the_last_call_was(ana):
    dashboards.call(ago(hours=3, minutes=12), feature="chat", tenant="t-2").save()
    said = ana.get("/allowance/now/").content.decode().replace("\xa0", " ")
    assert "The last call was 3 hours, 12 minutes ago, by chat / t-2." in said


def test_the_fragment_is_the_table_alone_and_small(ana):
    Reservation.objects.bulk_create(
        dashboards.call(ago(minutes=1), feature=f"f{n}") for n in range(10)
    )
    answer = ana.get("/allowance/now/table/", {"minutes": 5})
    assert b"<html" not in answer.content
    assert b"f9" in answer.content
    assert len(answer.content) < 20_000


def test_rows_keep_their_ids_from_one_refresh_to_the_next(ana):
    dashboards.call(ago(minutes=1)).save()
    first = ana.get("/allowance/now/table/").context["spenders"][0].id
    dashboards.call(ago(minutes=1)).save()
    assert ana.get("/allowance/now/table/").context["spenders"][0].id == first


def test_staff_of_some_tenants_see_only_theirs(client, settings):
    settings.TOKEN_ALLOWANCE = {"STAFF_TENANT_FILTER": lambda user: ["acme"]}
    Reservation.objects.bulk_create(
        [dashboards.call(ago(minutes=1), tenant=name) for name in ("acme", "globex", "")]
    )
    client.force_login(dashboards.owner())
    page = client.get("/allowance/now/")
    assert [one.tenant for one in page.context["spenders"]] == ["acme"]
    assert "globex" not in page.content.decode()


def test_who_may_not_stop_is_told_why(client):
    dashboards.call(ago(minutes=1)).save()
    client.force_login(dashboards.person("bo", "view_dashboard"))
    said = client.get("/allowance/now/").content.decode()
    assert "Stopping and resuming needs the permission" in said


def test_the_number_of_queries_does_not_grow(ana):
    def queries():
        with CaptureQueriesContext(connection) as made:
            ana.get("/allowance/now/")
        return len(made)

    dashboards.call(ago(minutes=1)).save()
    queries()
    few = queries()
    Reservation.objects.bulk_create(
        dashboards.call(ago(minutes=1), feature=f"f{n}", tenant=f"t{n}") for n in range(40)
    )
    assert queries() == few < 25
