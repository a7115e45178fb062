"""Admin pages of alerts and of the rules that fire them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from token_allowance.alerts import defaults
from token_allowance.models import Alert, AlertRule, Channel, Delivery

pytestmark = pytest.mark.django_db

LIST = reverse("admin:token_allowance_alert_changelist")
RULES = reverse("admin:token_allowance_alertrule_changelist")
HOSTILE = "<script>alert(1)</script>"


def fired(**given: Any) -> Alert:
    defaults.ensure("default")
    spender = {
        "tenant": "acme", "user": HOSTILE, "feature": "agent", "model": "m",
        "cost_micros": 31_840_000, "tokens": 5_000, "calls": 412, "usual_calls": 29, "percent": 63,
    }  # fmt: skip
    row = {
        "rule": AlertRule.objects.get(kind="budget"), "target": "8|tenant=acme|cost", "window": "w",
        "rung": 100, "amount": 250_000_000, "severity": "critical", "tenant": "acme",
        "title": "acme reached its monthly limit: $250.00 of $250.00", "unit": "cost",
        "value": 250_000_000, "threshold": 250_000_000,
        "snapshot": {"top_spenders": [spender], "top_minutes": 15, "reserved": 1_500_000},
    }  # fmt: skip
    return Alert.objects.create(**{**row, **given})


def act(client: Client, action: str, *alerts: Alert, **fields: Any) -> str:
    chosen = {"action": action, "_selected_action": [alert.pk for alert in alerts], **fields}
    return client.post(LIST, chosen, follow=True).content.decode()


def page(alert: Alert) -> str:
    return reverse("admin:token_allowance_alert_change", args=[alert.pk])


def test_the_list_tells_what_who_and_whether_anybody_was_told(admin_client: Client) -> None:
    alert = fired()
    for name, state in (("mail", "sent"), ("chat", "sent"), ("hook", "failed")):
        place = Channel.objects.create(name=name, kind="signal")
        Delivery.objects.create(alert=alert, channel=place, event="fired", payload={}, state=state)
    html = admin_client.get(LIST).content.decode()
    assert "acme reached its monthly limit: $250.00 of $250.00" in html
    assert "2 sent, 1 given up" in html
    assert "63 %" in html
    assert HOSTILE not in html


def test_the_page_shows_the_snapshot_as_a_table(admin_client: Client) -> None:
    alert = fired()
    place = Channel.objects.create(name="mail", kind="signal")
    Delivery.objects.create(alert=alert, channel=place, event="fired", payload={})
    html = admin_client.get(page(alert)).content.decode()
    for text in ("<td>$31.84</td>", "<td>412</td>", "<td>29</td>", "reserved: $1.50", "pending"):
        assert text in html
    assert HOSTILE not in html
    assert admin_client.post(page(alert), {"title": "x"}).status_code == 403


@pytest.mark.parametrize("state", ["open", "acknowledged", "muted", "resolved"])
def test_the_filter_finds_each_state(admin_client: Client, state: str) -> None:
    now = timezone.now()
    fired(title="is open")
    fired(target="b", title="is acknowledged", acknowledged_at=now, acknowledged_by="ana")
    fired(target="c", title="is muted", muted_until=now + dt.timedelta(hours=1))
    fired(target="d", title="is resolved", resolved_at=now)
    html = admin_client.get(LIST, {"state": state}).content.decode()
    titles = ["is open", "is acknowledged", "is muted", "is resolved"]
    assert [title for title in titles if title in html] == [f"is {state}"]


def test_acknowledging_says_who_and_is_logged(admin_client: Client) -> None:
    alert = fired()
    assert "1 acknowledged." in act(admin_client, "acknowledge", alert)
    alert.refresh_from_db()
    assert alert.acknowledged_by == "admin"
    assert LogEntry.objects.get().get_change_message() == "acknowledged"
    assert "0 acknowledged." in act(admin_client, "acknowledge", alert)


def test_muting_needs_a_reason_and_ends_by_itself(admin_client: Client) -> None:
    alert = fired()
    said = act(admin_client, "mute", alert, hours="4", reason=" ")
    assert "needs a reason" in said
    act(admin_client, "mute", alert, hours="4", reason="load test")
    alert.refresh_from_db()
    assert alert.muted_until is not None
    left = alert.muted_until - timezone.now()
    assert dt.timedelta(hours=3, minutes=59) < left <= dt.timedelta(hours=4)
    assert (alert.muted_by, alert.mute_reason) == ("admin", "load test")
    act(admin_client, "mute", alert, hours="999", reason="for ever")
    alert.refresh_from_db()
    assert alert.mute_reason == "load test"
    act(admin_client, "unmute", alert)
    alert.refresh_from_db()
    assert alert.muted_until is None


def test_who_may_only_look_is_offered_no_action(client: Client) -> None:
    alert = fired()
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.set(Permission.objects.filter(codename="view_alert"))
    client.force_login(viewer)
    assert "Acknowledge" not in client.get(LIST).content.decode()
    act(client, "acknowledge", alert)
    alert.refresh_from_db()
    assert alert.acknowledged_at is None


def test_pages_ask_as_many_queries_however_many_alerts_there_are(
    admin_client: Client, django_assert_max_num_queries: Any
) -> None:
    for place in range(40):
        fired(target=str(place))
    with django_assert_max_num_queries(12):
        admin_client.get(LIST)


def test_a_rule_says_what_it_is_about_and_how_it_goes(admin_client: Client) -> None:
    fired()
    rule = AlertRule.objects.get(kind="spend_rate")
    AlertRule.objects.filter(pk=rule.pk).update(error="StoreUnavailable: down")
    html = admin_client.get(RULES).content.decode()
    assert "fails: StoreUnavailable: down" in html
    url = reverse("admin:token_allowance_alertrule_change", args=[rule.pk])
    assert "how many times the usual is too much" in admin_client.get(url).content.decode()


def test_a_rule_is_changed_and_keeps_its_kind(admin_client: Client) -> None:
    defaults.ensure("default")
    rule = AlertRule.objects.get(kind="spend_rate")
    place = Channel.objects.create(name="mail", kind="signal")
    url = reverse("admin:token_allowance_alertrule_change", args=[rule.pk])
    form = {"name": "spikes", "kind": "silent", "severity": "info", "threshold": "9",
            "minutes": "30", "channels": [place.pk]}  # fmt: skip
    assert admin_client.post(url, form).status_code == 302
    rule.refresh_from_db()
    assert (rule.name, rule.kind, rule.severity, rule.minutes) == (
        "spikes",
        "spend_rate",
        "info",
        30,
    )
    assert not rule.is_active
    assert list(rule.channels.all()) == [place]
    defaults.ensure("default")
    assert AlertRule.objects.filter(kind="spend_rate").count() == 1
