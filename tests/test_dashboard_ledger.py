"""The ledger's screen: every row can be found, and each says how its cost came about."""

from __future__ import annotations

import csv
import datetime as dt
import io
import uuid
from decimal import Decimal

import pytest
from django.utils import timezone

from tests import dashboards
from token_allowance.models import Reservation
from token_allowance.pricing import ModelPrice
from token_allowance.usage import Usage

NOW = dt.datetime(2026, 11, 30, 12, 7, tzinfo=dt.UTC)
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _now(monkeypatch):
    monkeypatch.setattr(timezone, "now", lambda: NOW)


@pytest.fixture
def ana(client):
    client.force_login(dashboards.owner())
    return client


def calls(number, **fields):
    """Calls of the last hour whose ids follow their times, as UUIDv7s do."""
    made = [
        dashboards.call(NOW - dt.timedelta(seconds=number - n), id=uuid.UUID(int=n + 1), **fields)
        for n in range(number)
    ]
    Reservation.objects.bulk_create(made)
    return made


def test_pages_follow_each_other_without_a_gap_while_rows_are_added(ana):
    made = calls(120)
    seen = []
    page = ana.get("/allowance/ledger/")
    calls_later = dashboards.call(NOW, id=uuid.UUID(int=999))
    calls_later.save()
    while True:
        seen += [row.pk for row in page.context["rows"]]
        if not page.context["older"]:
            break
        page = ana.get("/allowance/ledger/", {"before": page.context["older"]})
    assert seen == [row.pk for row in reversed(made)]
    back = ana.get("/allowance/ledger/", {"after": str(seen[99])})
    assert [row.pk for row in back.context["rows"]] == seen[49:99]


def test_filters_narrow_and_the_empty_page_says_which(ana):
    calls(3, tenant="acme", user="")
    assert len(ana.get("/allowance/ledger/", {"tenant": "acme"}).context["rows"]) == 3
    assert len(ana.get("/allowance/ledger/", {"user": "none"}).context["rows"]) == 3
    empty = ana.get("/allowance/ledger/", {"tenant": "globex", "state": "expired"})
    assert "tenant globex, state expired" in " ".join(empty.content.decode().split())
    assert len(ana.get("/allowance/ledger/", {"over": "1000"}).context["rows"]) == 0


def test_a_trace_is_found_whenever_it_was(ana):
    dashboards.call(NOW - dt.timedelta(days=90), trace_id="t-1").save()
    assert len(ana.get("/allowance/ledger/", {"trace_id": "t-1"}).context["rows"]) == 1


@pytest.mark.parametrize(
    "query",
    ["before=x", "after=%00", "over=NaN", "over=-1", "state=x", "tenant=%00", "range=custom"],
)
def test_nonsense_in_the_address_is_no_error(ana, query):
    assert ana.get(f"/allowance/ledger/?{query}").status_code == 200


def test_a_call_shows_its_arithmetic_and_its_budgets(ana):
    price = ModelPrice(
        provider="openai", model="gpt-5-mini", input_mtok=Decimal(3), output_mtok=Decimal(15)
    )
    usage = Usage(input_tokens=1_204, output_tokens=310)
    row = dashboards.call(
        NOW, cost_micros=8_262, cost_exact=8_262, price=price.as_dict(), usage=usage.as_dict(),
        input_tokens=1_204, output_tokens=310, trace_id="t-2",
        holds=[["8|tenant=acme|cost|day/1/UTC|20261130T000000Z", "cost", 80_000]],
    )  # fmt: skip
    row.save()
    dashboards.call(NOW, trace_id="t-2").save()
    page = ana.get(f"/allowance/ledger/{row.pk}/")
    said = page.content.decode()
    assert "1,204 input × $3.00/M + 310 output × $15.00/M = $0.008262" in said
    assert "tenant acme" in said
    assert "$0.08" in said
    assert "Other calls of this trace" in said


def test_c93_a_foreign_call_does_not_exist(client, settings):
    settings.TOKEN_ALLOWANCE = {"STAFF_TENANT_FILTER": lambda user: ["acme"]}
    own, foreign = dashboards.call(NOW), dashboards.call(NOW, tenant="globex")
    Reservation.objects.bulk_create([own, foreign])
    client.force_login(dashboards.owner())
    assert client.get(f"/allowance/ledger/{own.pk}/").status_code == 200
    assert client.get(f"/allowance/ledger/{foreign.pk}/").status_code == 404
    assert client.get(f"/allowance/ledger/{uuid.uuid4()}/").status_code == 404
    for query in ({}, {"tenant": "globex"}, {"range": "30d"}):
        rows = client.get("/allowance/ledger/", query).context["rows"]
        assert {row.tenant for row in rows} <= {"acme"}
    said = b"".join(client.get("/allowance/ledger/", {"format": "csv"}).streaming_content)
    assert b"globex" not in said


def test_the_csv_has_every_row_and_dollars_as_numbers(ana):
    calls(60)
    answer = ana.get("/allowance/ledger/", {"format": "csv"})
    lines = list(csv.reader(io.StringIO(b"".join(answer.streaming_content).decode())))
    assert len(lines) == 61
    assert lines[1][lines[0].index("cost_dollars")] == "0.000650"


def test_the_ledger_needs_its_own_permission(client):
    client.force_login(dashboards.person("bo", "view_dashboard"))
    assert client.get("/allowance/ledger/").status_code == 403
    client.force_login(dashboards.person("cy", "view_dashboard", "view_reservation"))
    assert client.get("/allowance/ledger/").status_code == 200
