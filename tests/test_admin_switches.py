"""Admin pages of switches: what is engaged, and how it is released, with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from token_allowance import allowance
from token_allowance.admin import boards
from token_allowance.models import Switch, SwitchEvent

pytestmark = pytest.mark.django_db

LIST = reverse("admin:token_allowance_switch_changelist")
HOSTILE = "<script>alert(1)</script>"


def post(client: Client, *switches: Switch, **fields: Any) -> str:
    chosen = [switch.pk for switch in switches]
    data = {"action": "release", "_selected_action": chosen, **fields}
    return client.post(LIST, data, follow=True).content.decode()


def staff(*permissions: str) -> Client:
    user = User.objects.create_user("eve", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def engaged(**target: Any) -> Switch:
    allowance.engage(**target, reason=HOSTILE, by="ana")
    return Switch.objects.latest("id")


def test_release_asks_first_and_tells_what_was_stopped_and_why(admin_client: Client) -> None:
    switch = engaged(feature="agent", percent=40)
    html = post(admin_client, switch)
    assert "feature agent (40 % of the callers)" in html
    assert "&lt;script&gt;" in html
    assert HOSTILE not in html
    assert Switch.objects.get().released_at is None
    assert Switch.objects.get(pk=switch.pk).released_at is None
    html = post(admin_client, switch, confirmed="yes", why="  ")
    assert "Why, for the history" in html
    assert "Calls are let through again: feature agent." in post(
        admin_client, switch, confirmed="yes", why="the loop is fixed"
    )
    event = SwitchEvent.objects.order_by("id").last()
    assert event is not None
    assert (event.action, event.by, event.reason) == ("released", "admin", "the loop is fixed")
    assert event.source == "admin"
    assert LogEntry.objects.get().object_id == str(switch.pk)
    assert "None of them is engaged." in post(admin_client, switch, confirmed="yes", why="again")
    assert SwitchEvent.objects.count() == 2


@pytest.mark.parametrize(
    ("permission", "target", "may"),
    [
        ("flip_switch", {"feature": "agent"}, True),
        ("flip_switch", {"everything": True}, False),
        ("flip_global_switch", {"everything": True}, True),
        ("flip_global_switch", {"feature": "agent"}, False),
        ("change_switch", {"feature": "agent"}, False),
    ],
)
def test_who_may_release_what(permission: str, target: dict[str, Any], may: bool) -> None:
    switch = engaged(**target)
    post(staff("view_switch", permission), switch, confirmed="yes", why="may I?")
    assert (Switch.objects.get().released_at is not None) is may


def test_pages_lead_to_the_dashboard_where_it_is_mounted(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = engaged(feature="agent")
    page = reverse("admin:token_allowance_switch_change", args=[switch.pk])
    assert 'href="/allowance/switches/"' in admin_client.get(LIST).text
    assert 'href="/allowance/switches/stop/"' in admin_client.get(LIST).text
    assert f'href="/allowance/switches/{switch.pk}/"' in admin_client.get(page).text
    assert "/stop/" not in staff("view_switch").get(LIST).text
    monkeypatch.setattr(boards, "BOARD", "not_mounted")
    for url in (LIST, page):
        assert "View on dashboard" not in admin_client.get(url).text


def test_the_page_of_a_switch_tells_how_it_stands_and_stood(admin_client: Client) -> None:
    switch = engaged(tenant="7", percent=90, cut_streams=True)
    html = admin_client.get(reverse("admin:token_allowance_switch_change", args=[switch.pk])).text
    assert "90 %, always the same" in html
    assert "engaged: stops calls" in html
    assert "&lt;script&gt;" in html
    assert HOSTILE not in html
