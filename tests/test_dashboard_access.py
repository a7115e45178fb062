"""Who sees what: every address of the dashboard, for everybody who may come to it."""

from __future__ import annotations

import uuid

import pytest
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.urls import reverse
from django.utils import timezone

from tests import dashboards
from token_allowance import allowance
from token_allowance.models import Alert, AlertRule, Limit, Reservation, Switch, Tenant
from token_allowance_dashboard import urls

pytestmark = pytest.mark.django_db
APP = "token_allowance_dashboard"
#: What a page says if the tenant globex is shown on it.
FOREIGN = "globex"
#: Pages that only whoever may see everything may open.
WHOLE = {"health_json"}
#: Pages about a budget that the address has to name: without one they do not exist.
NAMED = {"increase", "limit_reset"}
#: Addresses that want a permission beside that of the dashboard.
MORE = {
    "ledger": "view_reservation",
    "reservation": "view_reservation",
    "alert_acknowledge": "acknowledge_alert",
    "alert_mute": "acknowledge_alert",
}


@pytest.fixture
def things():
    """One of everything, of the tenant acme and of globex; by name of an address its arguments."""
    now = timezone.now()
    rule = AlertRule.objects.create(kind="budget", name="budgets")
    found = {}
    for tenant in ("acme", FOREIGN):
        Tenant.objects.create(key=tenant, name=tenant)
        row = dashboards.call(now, tenant=tenant, id=uuid.uuid4())
        row.save()
        limit = Limit.objects.create(tenant=tenant, window="day", unit="cost", amount=1_000_000)
        alert = Alert.objects.create(
            rule=rule, target=f"tenant={tenant}", tenant=tenant, title=f"{tenant} is near its end",
            severity="warning",
        )  # fmt: skip
        allowance.engage(tenant=tenant, reason="tried", by="ana")
        switch = Switch.objects.get(tenant=tenant)
        found[tenant] = {
            "reservation": row.pk, "limit": limit.pk, "alert": alert.pk, "switch": switch.pk,
            "tenant": tenant,
        }  # fmt: skip
    return found


def argument(name, of):
    kind = name.partition("_")[0]
    return of["reservation"] if name == "reservation" else of.get(kind)


def addresses(of):
    """Every address of the URL map: (name, url, is it about one thing)."""
    for pattern in urls.urlpatterns:
        name = pattern.name
        if pattern.pattern.converters:
            yield name, reverse(f"{APP}:{name}", args=[argument(name, of)]), True
        else:
            yield name, reverse(f"{APP}:{name}"), False


def test_the_walk_knows_every_address(things):
    assert len(list(addresses(things["acme"]))) == len(urls.urlpatterns) > 15


def test_an_anonymous_visitor_is_sent_to_the_sign_in_page(client, things):
    for name, url, _ in addresses(things["acme"]):
        for method in (client.get, client.post):
            answer = method(url)
            if answer.status_code != 405:
                assert (name, answer.status_code) == (name, 302)
                assert "/login/" in answer["Location"]


def test_somebody_without_rights_sees_nothing(client, things):
    client.force_login(dashboards.person("bo"))
    for name, url, _ in addresses(things["acme"]):
        for method in (client.get, client.post):
            answer = method(url)
            if answer.status_code != 405:
                assert (name, answer.status_code) == (name, 403)
                assert b"acme" not in answer.content


def test_a_viewer_sees_and_changes_nothing(client, things):
    client.force_login(dashboards.person("vi", "view_dashboard"))
    before = snapshot()
    for name, url, _ in addresses(things["acme"]):
        answer = client.get(url)
        assert (name, answer.status_code) in {(name, 200), (name, 403), (name, 302), (name, 503)}
        if name in MORE:
            assert (name, answer.status_code) == (name, 403)
        client.post(url, {"reason": "because", "hours": 1, "amount": "9", "unit": "cost"})
    assert snapshot() == before


def snapshot():
    return [
        list(model.objects.order_by("pk").values())
        for model in (Limit, Switch, Alert, Reservation, Tenant)
    ]


def test_staff_of_one_tenant_find_nothing_of_another(client, settings, things):
    settings.TOKEN_ALLOWANCE = {"STAFF_TENANT_FILTER": lambda user: ["acme"]}
    client.force_login(dashboards.owner())
    for name, url, of_one in addresses(things["acme"]):
        answer = client.get(url, follow=True)
        expected = 403 if name in WHOLE else 404 if name in NAMED else 200
        assert (name, answer.status_code) == (name, expected)
        assert FOREIGN not in answer.content.decode(), (name, of_one)
    before = snapshot()
    for name, url, of_one in addresses(things[FOREIGN]):
        if of_one:
            for method in (client.get, client.post):
                answer = method(url, {"reason": "because", "hours": 1})
                assert (name, answer.status_code) in {(name, 404), (name, 403), (name, 405)}
    assert snapshot() == before


def test_an_owner_sees_everything(client, things):
    client.force_login(dashboards.owner())
    for of in things.values():
        for name, url, _ in addresses(of):
            answer = client.get(url, follow=True)
            expected = 404 if name in NAMED else 200
            assert (name, answer.status_code) in {(name, expected), ("health_json", 503)}


def test_every_post_wants_its_token(things):
    from django.test import Client

    client = Client(enforce_csrf_checks=True)
    client.force_login(dashboards.owner())
    before = snapshot()
    for name, url, _ in addresses(things["acme"]):
        answer = client.post(url, {"reason": "because", "hours": 1})
        assert (name, answer.status_code) in {(name, 403), (name, 405)}
    assert snapshot() == before


def test_the_groups_have_what_their_names_say(client, things, capsys):
    call_command("allowance", "groups")
    call_command("allowance", "groups")
    assert "Allowance owner: is there, 0 permissions added" in capsys.readouterr().out
    for name, ledger, acknowledge in (
        ("viewer", 403, 403), ("operator", 200, 200), ("finance", 200, 403), ("owner", 200, 200),
    ):  # fmt: skip
        somebody = dashboards.person(name)
        somebody.groups.add(Group.objects.get(name=f"Allowance {name}"))
        client.force_login(somebody)
        assert client.get(reverse(f"{APP}:overview")).status_code == 200
        assert client.get(reverse(f"{APP}:ledger")).status_code == ledger
        alert = reverse(f"{APP}:alert_acknowledge", args=[things["acme"]["alert"]])
        assert client.get(alert).status_code == acknowledge
