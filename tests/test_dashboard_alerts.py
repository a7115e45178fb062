"""Alerts on the dashboard: what is open, what was seen then, and who looks after it."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from tests import dashboards
from token_allowance.models import Alert, AlertRule, Channel, Delivery

pytestmark = pytest.mark.django_db


@pytest.fixture
def ana(client):
    client.force_login(dashboards.owner())
    return client


@pytest.fixture
def rule():
    return AlertRule.objects.create(kind="budget", name="budgets")


def alert(rule, **fields):
    spender = {"tenant": "acme", "user": "u_1", "feature": "agent", "model": "m",
               "cost_micros": 31_840_000, "calls": 412, "percent": 63,
               "usual_calls": 29}  # fmt: skip
    given = {
        "rule": rule, "target": "feature=agent", "severity": "critical", "tenant": "acme",
        "feature": "agent", "title": "[BLOCKED] acme reached its monthly limit", "unit": "cost",
        "value": 250_000_000, "threshold": 250_000_000,
        "snapshot": {"top_spenders": [spender], "top_minutes": 15},
    }  # fmt: skip
    return Alert.objects.create(**given | fields)


def test_each_tab_has_its_alerts_and_their_number(ana, rule):
    now = timezone.now()
    alert(rule, title="open one")
    alert(rule, target="b", title="seen one", acknowledged_at=now, acknowledged_by="bo")
    alert(rule, target="c", title="muted one", muted_until=now + dt.timedelta(hours=1))
    alert(rule, target="d", title="old one", resolved_at=now)
    for state, title in (("open", "open one"), ("acknowledged", "seen one"),
                         ("muted", "muted one"), ("over", "old one")):  # fmt: skip
        page = ana.get("/allowance/alerts/", {"state": state})
        assert [row["alert"].title for row in page.context["rows"]] == [title]
        assert {number for _, _, number in page.context["states"]} == {1}


def test_a_row_says_who_spends_and_whether_anybody_was_told(ana, rule):
    one = alert(rule)
    channel = Channel.objects.create(name="ops", kind="email", address="ops@example.com")
    Delivery.objects.create(alert=one, channel=channel, event="fired", payload={}, state="failed")
    said = " ".join(ana.get("/allowance/alerts/").content.decode().split())
    assert "acme / u_1 / agent / m, 63 %" in said
    assert "1 failed" in said
    assert "$250.00" in said


def test_the_snapshot_is_of_then_and_stands_beside_now(ana, rule):
    one = alert(rule)
    dashboards.call(timezone.now() - dt.timedelta(minutes=1), feature="agent").save()
    page = ana.get(f"/allowance/alerts/{one.pk}/")
    assert page.context["then"][0]["cost_micros"] == 31_840_000
    assert [row["feature"] for row in page.context["live"]] == ["agent"]
    assert page.context["live"][0]["cost_micros"] == 650


def test_a_link_never_acts_and_a_post_does(ana, rule):
    one = alert(rule)
    assert ana.get(f"/allowance/alerts/{one.pk}/acknowledge/").status_code == 200
    one.refresh_from_db()
    assert one.acknowledged_at is None
    answer = ana.post(f"/allowance/alerts/{one.pk}/acknowledge/", follow=True)
    one.refresh_from_db()
    assert one.acknowledged_by == "ana"
    assert "Acknowledged" in answer.content.decode()
    again = ana.post(f"/allowance/alerts/{one.pk}/acknowledge/", follow=True)
    assert "had acknowledged it before" in again.content.decode()


def test_muting_needs_a_reason_and_is_kept(ana, rule):
    one = alert(rule)
    assert ana.post(f"/allowance/alerts/{one.pk}/mute/", {"hours": 4}).status_code == 422
    ana.post(f"/allowance/alerts/{one.pk}/mute/", {"hours": 4, "reason": "known, INC-1"})
    one.refresh_from_db()
    assert (one.muted_by, one.mute_reason) == ("ana", "known, INC-1")
    assert ana.post(f"/allowance/alerts/{one.pk}/mute/", {"hours": 99, "reason": "x"}).status_code


def test_who_may_not_acknowledge_is_told_why(client, rule):
    one = alert(rule)
    client.force_login(dashboards.person("bo", "view_dashboard"))
    assert (
        "Acknowledging needs the permission"
        in client.get(f"/allowance/alerts/{one.pk}/").content.decode()
    )
    assert client.post(f"/allowance/alerts/{one.pk}/acknowledge/").status_code == 403


def test_staff_of_some_tenants_see_only_theirs(client, settings, rule):
    settings.TOKEN_ALLOWANCE = {"STAFF_TENANT_FILTER": lambda user: ["acme"]}
    alert(rule)
    foreign = alert(rule, target="b", tenant="globex")
    everybody = alert(rule, target="c", tenant="")
    client.force_login(dashboards.owner())
    assert len(client.get("/allowance/alerts/").context["rows"]) == 1
    for one in (foreign, everybody):
        assert client.get(f"/allowance/alerts/{one.pk}/").status_code == 404
        assert client.post(f"/allowance/alerts/{one.pk}/acknowledge/").status_code == 404


def test_the_rules_say_where_they_send_and_when_they_would_have_told(ana):
    rule = AlertRule.objects.create(kind="spend_rate", name="spend rate", threshold=4)
    said = ana.get("/allowance/alerts/rules/").content.decode()
    assert "No rules send anywhere yet" in said
    page = ana.get("/allowance/alerts/rules/", {"preview": rule.pk})
    assert "would have fired 0 times in 14 days" in page.content.decode()
    assert ana.get("/allowance/alerts/rules/", {"preview": "x"}).status_code == 200
