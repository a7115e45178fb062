"""Tenants on the dashboard: who is near the edge, and what can be done for one of them."""

from __future__ import annotations

import datetime as dt
import html
import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests import dashboards
from token_allowance import allowance, spend, testing
from token_allowance.models import (
    Alert,
    AlertRule,
    Limit,
    LimitIncrease,
    LimitRevision,
    Refusal,
    Reservation,
    Tenant,
)

NOW = dt.datetime(2026, 11, 30, 12, 7, tzinfo=dt.UTC)
DOLLAR = 1_000_000
HREF = re.compile(r'<th scope="row"><a href="([^"]*)"')
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _now(monkeypatch):
    monkeypatch.setattr(timezone, "now", lambda: NOW)


@pytest.fixture
def ana(client):
    client.force_login(dashboards.owner())
    return client


def spent(dollars, *, hours_ago=1, **fields):
    micros = int(dollars * DOLLAR)
    at = NOW - dt.timedelta(hours=hours_ago)
    dashboards.call(at, cost_micros=micros, cost_exact=micros, **fields).save()
    spend.verify(NOW, dt.timedelta(days=40))


def lines(client, **query):
    page = client.get("/allowance/tenants/", query)
    assert page.status_code == 200
    return {line.key: line for line in page.context["lines"]}


def test_the_nearest_to_its_limit_comes_first_with_its_state(ana):
    Limit.objects.create(tenant="*", window="month", amount=10 * DOLLAR)
    Limit.objects.create(tenant="*", window="day", amount=100 * DOLLAR)
    Limit.objects.create(tenant="big", window="month", amount=100 * DOLLAR)
    Tenant.objects.create(key="quiet", name="Quiet Ltd", plan="pro")
    for key, dollars in (("globex", 9), ("acme", 12), ("big", 20), ("initech", 1)):
        spent(dollars, tenant=key)
    spent(3, tenant="old", hours_ago=24 * 35)
    found = lines(ana)
    assert list(found) == ["acme", "globex", "big", "initech", "quiet"]
    assert [line.state for line in found.values()] == ["blocked", "degraded", "ok", "ok", "ok"]
    assert (found["acme"].one.percent, found["big"].one.percent) == (120, 20)
    assert (found["acme"].month, found["acme"].day) == (12 * DOLLAR, 12 * DOLLAR)
    said = ana.get("/allowance/tenants/").content.decode()
    assert "Quiet Ltd" in said
    assert "120 %" in said


def test_search_state_and_plan_narrow(ana):
    Limit.objects.create(tenant="*", plan="pro", window="month", amount=10 * DOLLAR)
    Tenant.objects.create(key="acme", name="Roadrunner", plan="pro")
    Tenant.objects.create(key="off", is_active=False)
    spent(12, tenant="acme")
    spent(12, tenant="globex")
    assert set(lines(ana, q="runner")) == set(lines(ana, q="ACM")) == {"acme"}
    assert set(lines(ana, state="blocked")) == set(lines(ana, plan="pro")) == {"acme"}
    assert set(lines(ana, state="unlimited")) == {"globex"}
    assert set(lines(ana, state="stopped")) == {"off"}
    assert set(lines(ana, state="nonsense", page="x")) == {"acme", "globex", "off"}
    assert "No tenant is like that" in ana.get("/allowance/tenants/?q=%00zzz").content.decode()


def test_a_switch_stops_a_tenant_and_the_whole_world_stops_all(ana):
    spent(1, tenant="acme")
    spent(1, tenant="globex")
    allowance.engage(tenant="acme", feature="chat", reason="only a part", by="ana")
    assert {line.state for line in lines(ana).values()} == {"unlimited"}
    allowance.engage(tenant="acme", reason="runaway", by="ana")
    assert lines(ana)["acme"].state == "stopped"
    assert lines(ana)["globex"].state == "unlimited"
    assert "runaway" in ana.get("/allowance/tenants/acme/").content.decode()
    allowance.engage(everything=True, reason="all", by="ana")
    assert lines(ana)["globex"].state == "stopped"


def test_without_tenants_the_page_says_how_calls_get_one(ana):
    assert "charge_to(tenant=" in ana.get("/allowance/tenants/").content.decode()


def test_a_tenants_page_tells_what_holds_for_it_and_where_that_comes_from(ana):
    Tenant.objects.create(key="acme", plan="pro")
    everyone = Limit.objects.create(window="month", amount=1_000 * DOLLAR)
    plan = Limit.objects.create(tenant="*", plan="pro", window="day", amount=20 * DOLLAR)
    own = Limit.objects.create(tenant="acme", window="month", amount=10 * DOLLAR)
    overridden = Limit.objects.create(tenant="*", window="month", amount=DOLLAR)
    users = Limit.objects.create(tenant="*", user="*", window="day", amount=50 * DOLLAR)
    Limit.objects.create(tenant="*", plan="free", window="day", amount=DOLLAR)
    LimitRevision.note(own, {}, by="eva", source="admin", reason="a deal")
    spent(8, tenant="acme", user="u_8", feature="agent")
    spent(4, tenant="acme", user="u_1", feature="chat", hours_ago=30)
    rule = AlertRule.objects.first() or AlertRule.objects.create(kind="budget", name="ladder")
    Alert.objects.create(rule=rule, target="k", severity="critical", tenant="acme",
                         title="acme reached it", fired_at=NOW)  # fmt: skip
    Refusal.objects.create(starts_at=NOW, code="tenant_monthly_budget_exceeded", tenant="acme",
                           feature="agent", calls=7, first_at=NOW, last_at=NOW)  # fmt: skip
    page = ana.get("/allowance/tenants/acme/")
    stack = page.context["stack"]
    assert [one.limit for one in stack] == [own, plan, users, everyone]
    assert overridden not in [one.limit for one in stack]
    assert [one.source for one in stack] == [
        "set for this tenant by eva 30 Nov 2026", "default for plan pro",
        "default for each tenant", "for everyone together",
    ]  # fmt: skip
    assert [one.one.used for one in stack] == [12 * DOLLAR, 8 * DOLLAR, 8 * DOLLAR, 12 * DOLLAR]
    assert page.context["total"] == 12 * DOLLAR
    said = page.content.decode()
    for text in ("New calls are refused until 1 Dec 00:00 UTC (in 11 h 53 min)", "acme reached it",
                 "$12.00 of $10.00 (120 %) of its monthly limit is used", "user u_8 of acme",
                 "tenant_monthly_budget_exceeded", "u_8"):  # fmt: skip
        assert text in said
    assert page.context["chart"].description.startswith("Spent this month: $12.00 so far.")


def test_a_key_may_hold_slashes_and_words_of_other_scripts(ana):
    for key in ("a/b", "größe/ü?&#%", "=1+1", "new"):
        spent(1, tenant=key)
        page = ana.get("/allowance/tenants/")
        links = [html.unescape(link) for link in HREF.findall(page.content.decode())]
        found = [ana.get(link).context.get("key") for link in links if "?" not in link]
        assert found.count(key) == 1
    csv = b"".join(ana.get("/allowance/tenants/?format=csv").streaming_content).decode()
    assert "'=1+1" in csv


def test_nobody_has_no_page(ana):
    assert ana.get("/allowance/tenants/nobody/").status_code == 404
    Limit.objects.create(tenant="soon", window="day", amount=1)
    assert "No calls this month." in ana.get("/allowance/tenants/soon/").content.decode()


def more(step="preview", **given):
    return {"amount": "5", "until": "2026-12-01T12:00", "reason": "a launch", "user": "",
            "step": step, **given}  # fmt: skip


def test_more_for_a_while_is_asked_for_looked_at_and_granted(ana):
    limit = Limit.objects.create(tenant="*", window="month", amount=10 * DOLLAR)
    spent(10, tenant="acme")
    address = f"/allowance/increase/?tenant=acme&limit={limit.pk}"
    assert ana.get(address).status_code == 200
    page = ana.post(address, more(limit=limit.pk))
    said = page.content.decode()
    assert "acme gets $5.00 more" in said
    assert "used $10.00 of $10.00" in said
    assert not LimitIncrease.objects.exists()
    assert ana.post(address, more("save", limit=limit.pk)).status_code == 302
    made = LimitIncrease.objects.get()
    assert (made.tenant, made.amount, made.by, made.reason) == (
        "acme", 5 * DOLLAR, "ana", "a launch",
    )  # fmt: skip
    line = lines(ana)["acme"]
    assert (line.one.amount, line.state) == (15 * DOLLAR, "ok")
    assert "a launch" in ana.get("/allowance/tenants/acme/").content.decode()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"amount": "0"}, "amount"), ({"amount": "x"}, "amount"), ({"amount": "-1"}, "amount"),
        ({"until": "2026-11-30T12:00"}, "until"), ({"until": "2036-11-30T12:00"}, "until"),
        ({"reason": " "}, "reason"), ({"limit": "999"}, "limit"), ({"user": "u_1"}, "user"),
    ],
)  # fmt: skip
def test_what_cannot_be_granted_is_said_beside_its_field(ana, given, field):
    limit = Limit.objects.create(tenant="*", window="month", amount=10 * DOLLAR)
    for step in ("preview", "save"):
        page = ana.post("/allowance/increase/?tenant=acme", more(step, limit=limit.pk) | given)
        assert field in page.context["form"].errors
    assert not LimitIncrease.objects.exists()


def test_c91_granting_more_needs_its_permission(client):
    limit = Limit.objects.create(tenant="*", window="month", amount=10 * DOLLAR)
    client.force_login(dashboards.person("bo", "view_dashboard", "change_limit"))
    address = "/allowance/increase/?tenant=acme"
    assert client.get(address).status_code == 403
    assert client.post(address, more("save", limit=limit.pk)).status_code == 403
    spent(1, tenant="acme")
    said = client.get("/allowance/tenants/acme/").content.decode()
    assert "Granting more needs the permission" in said
    assert "Stopping and resuming needs the permission" in said
    assert not LimitIncrease.objects.exists()


def test_staff_of_some_tenants_see_only_theirs(client, settings):
    settings.TOKEN_ALLOWANCE = {"STAFF_TENANT_FILTER": lambda user: ["acme"]}
    Limit.objects.create(window="month", amount=10 * DOLLAR)
    limit = Limit.objects.create(tenant="*", window="month", amount=10 * DOLLAR)
    other = Limit.objects.create(tenant="globex", window="day", amount=10 * DOLLAR)
    Tenant.objects.create(key="globex", name="Globex")
    spent(1, tenant="acme")
    spent(2, tenant="globex")
    client.force_login(dashboards.owner())
    assert set(lines(client)) == {"acme"}
    assert set(lines(client, q="glob")) == set()
    assert client.get("/allowance/tenants/globex/").status_code == 404
    page = client.get("/allowance/tenants/acme/")
    assert [one.limit for one in page.context["stack"]] == [limit]
    assert "globex" not in page.content.decode()
    for key, status in (("globex", 404), ("", 404), ("*", 404), ("acme", 302)):
        address = f"/allowance/increase/?tenant={key}"
        assert client.post(address, more("save", limit=limit.pk)).status_code == status
    answer = client.post("/allowance/increase/?tenant=acme", more("save", limit=other.pk))
    assert "limit" in answer.context["form"].errors
    assert b"globex" not in b"".join(client.get("/allowance/tenants/?format=csv").streaming_content)


def test_the_number_of_queries_does_not_grow(ana, monkeypatch):
    def queries(address):
        with CaptureQueriesContext(connection) as made:
            assert ana.get(address).status_code == 200
        return len(made)

    Limit.objects.create(tenant="*", window="month", amount=5 * DOLLAR)
    Limit.objects.create(tenant="*", user="*", window="day", amount=5 * DOLLAR)
    testing.spend("0.01", tenant="t0", user="u")
    spend.fold(NOW)
    monkeypatch.setattr(timezone, "now", lambda: NOW + dt.timedelta(minutes=1))
    addresses = ("/allowance/tenants/", "/allowance/tenants/t0/")
    few = [(queries(address), queries(address))[1] for address in addresses]
    for n in range(1, 30):
        Tenant.objects.create(key=f"t{n}", plan=f"p{n}")
        Limit.objects.create(tenant=f"t{n}", window="month", amount=5 * DOLLAR)
        testing.spend("0.01", tenant=f"t{n}", user="u")
        testing.spend("0.01", tenant="t0", user=f"u{n}")
    spend.fold(NOW)
    many = [(queries(address), queries(address))[1] for address in addresses]
    assert len(ana.get(addresses[0]).context["lines"]) == 30
    assert many == few
    assert max(many) < 40
    assert Reservation.objects.count() == 59


def test_a_new_limit_of_many_tenants_is_summed_from_the_roll_ups(ana):
    Reservation.objects.bulk_create(
        dashboards.call(NOW - dt.timedelta(hours=1), tenant=f"t{n}", cost_micros=n * 1_000,
                        cost_exact=n * 1_000)
        for n in range(1, 61)
    )  # fmt: skip
    spend.fold(NOW)
    Limit.objects.create(tenant="*", window="month", amount=50_000)
    lines(ana)
    with CaptureQueriesContext(connection) as made:
        page = ana.get("/allowance/tenants/")
    assert len(made) < 30
    first = page.context["lines"][0]
    assert (first.key, first.one.used, first.state) == ("t60", 60_000, "blocked")
    assert page.context["pages"].paginator.count == 60
