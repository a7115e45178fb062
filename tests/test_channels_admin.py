"""Channels and deliveries in the admin: who sees what, tests, secrets, sending again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core import mail
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from tests.receivers import Receiver
from tests.tellings import LOOPBACK, NOW, alert, channel
from token_allowance.channels import outbox
from token_allowance.models import Channel, Delivery

pytestmark = pytest.mark.django_db(transaction=True)
SLACK = "https://hooks.slack.com/services/T0/B0/very-secret"


def page(name: str, action: str = "changelist", *args: Any) -> str:
    return reverse(f"admin:token_allowance_{name}_{action}", args=args)


def act(client: Client, name: str, action: str, *rows: Any) -> Any:
    given = {"action": action, "_selected_action": [row.pk for row in rows]}
    return client.post(page(name), given, follow=True)


@pytest.fixture
def viewer(client: Client) -> Client:
    user = User.objects.create_user("viewer", password="x", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(
            content_type__app_label="token_allowance", codename__startswith="view"
        )
    )
    client.force_login(user)
    return client


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().serving() as serving:
        yield serving


def row(**given: Any) -> Delivery:
    to = given.pop("channel", None) or channel()
    fired = alert(**given)
    outbox.tell(fired, "fired", NOW)
    return Delivery.objects.get(alert=fired, channel=to)


def add(client: Client, **given: Any) -> Any:
    form = {"name": "ops", "kind": "email", "address": "", "least_severity": "info",
            "is_active": "on", **given}  # fmt: skip
    return client.post(page("channel", "add"), form)


@pytest.mark.parametrize(
    ("kind", "address"),
    [("email", "ops@example.com, ana@example.com"), ("slack", SLACK), ("signal", ""),
     ("webhook", " https://hooks.example/x?y=z ")],
)  # fmt: skip
def test_a_channel_is_made(admin_client: Client, kind: str, address: str) -> None:
    assert add(admin_client, kind=kind, address=address).status_code == 302
    made = Channel.objects.get()
    assert (made.kind, made.address) == (kind, address.strip())
    assert made.secret.startswith("whsec_")


@pytest.mark.parametrize(
    ("kind", "address", "says"),
    [
        ("email", "", "at least one e-mail address"),
        ("email", "ops", "valid email address"),
        ("slack", "", "not an https URL"),
        ("webhook", "http://hooks.example/", "not https"),
        ("webhook", "https://169.254.169.254/", "not public"),
        ("webhook", "https://2130706433/", "names no host"),
        ("webhook", "file:///etc/passwd", "not an https URL"),
        ("signal", "x", "no address"),
    ],
)
def test_c94_an_address_that_can_never_work_is_not_taken(
    admin_client: Client, kind: str, address: str, says: str
) -> None:
    response = add(admin_client, kind=kind, address=address)
    assert response.status_code == 200
    assert says in response.text
    assert not Channel.objects.exists()


def test_whoever_may_only_look_sees_where_a_channel_leads_and_no_secret(viewer: Client) -> None:
    slack = channel(kind="slack", address=SLACK)
    for text in (viewer.get(page("channel")).text,
                 viewer.get(page("channel", "change", slack.pk)).text):  # fmt: skip
        assert "hooks.slack.com/…" in text
        assert "very-secret" not in text
        assert slack.secret not in text
    for action in ("send_test", "show_secret", "rotate_secret"):
        assert slack.secret not in act(viewer, "channel", action, slack).text
    assert Channel.objects.get().secret == slack.secret
    assert not Delivery.objects.exists()


def test_the_pages_show_no_secret_unless_asked(admin_client: Client) -> None:
    hook = channel(kind="webhook", address="https://hooks.example/")
    for url in (page("channel"), page("channel", "change", hook.pk)):
        assert hook.secret not in admin_client.get(url).text


def test_a_secret_is_shown_when_asked_and_made_anew(admin_client: Client) -> None:
    hook = channel(kind="webhook", address="https://hooks.example/")
    shown = act(admin_client, "channel", "show_secret", hook)
    assert hook.secret in shown.text
    assert "no-store" in shown["Cache-Control"]
    anew = act(admin_client, "channel", "rotate_secret", hook)
    made = Channel.objects.get().secret
    assert made != hook.secret
    assert made in anew.text
    assert hook.secret not in anew.text
    notes = LogEntry.objects.order_by("id").values_list("change_message", flat=True)
    assert list(notes) == ["its secret was shown", "it has a new secret"]


def test_only_webhooks_have_secrets(admin_client: Client) -> None:
    ops = channel()
    assert "Only webhooks are signed" in act(admin_client, "channel", "show_secret", ops).text
    act(admin_client, "channel", "rotate_secret", ops)
    assert Channel.objects.get().secret == ops.secret


def test_a_test_is_sent_at_once(admin_client: Client) -> None:
    text = act(admin_client, "channel", "send_test", channel()).text
    assert "the test was sent" in text
    assert [sent.subject for sent in mail.outbox] == ["[TEST] a message to channel email"]
    assert "admin sent this" in mail.outbox[0].body


def test_a_test_that_fails_says_why(
    admin_client: Client, receiver: Receiver, settings: Any
) -> None:
    settings.TOKEN_ALLOWANCE = LOOPBACK
    receiver.answers.append((403, {}, b"inside knowledge"))
    hook = channel(kind="webhook", address=receiver.url, is_active=False)
    text = act(admin_client, "channel", "send_test", hook).text
    assert "the test was not sent: HTTP 403." in text
    assert "inside knowledge" not in text
    listed = admin_client.get(page("channel")).text
    assert "on its way: HTTP 403" in listed


def test_deliveries_are_listed_shown_and_filtered(viewer: Client) -> None:
    failed = row()
    Delivery.objects.update(state="failed", attempts=8, error="HTTP 503")
    text = viewer.get(page("delivery"), {"state": "failed"}).text
    for words in ("[BLOCKED] acme-corp reached", "given up", "HTTP 503"):
        assert words in text
    assert "acme-corp reached" not in viewer.get(page("delivery"), {"state": "sent"}).text
    shown = viewer.get(page("delivery", "change", failed.pk)).text
    assert "acme-corp is now refused for all features" in shown
    assert "percent_used" in shown
    assert viewer.post(page("delivery", "delete", failed.pk), {"post": "yes"}).status_code == 403


def test_what_was_given_up_is_sent_again(admin_client: Client) -> None:
    failed = row()
    Delivery.objects.update(state="failed", attempts=8, error="HTTP 503")
    assert "1 will be sent again." in act(admin_client, "delivery", "send_again", failed).text
    again = act(admin_client, "delivery", "send_again", failed).text
    assert "0 will be sent again. 1 were on their way already." in again
    assert outbox.deliver(timezone.now()) == 1
    assert len(mail.outbox) == 1


def test_whoever_may_only_look_sends_nothing_again(viewer: Client) -> None:
    sent = row()
    Delivery.objects.update(state="sent")
    act(viewer, "delivery", "send_again", sent)
    assert Delivery.objects.get().state == "sent"


def test_hostile_names_are_only_text(admin_client: Client) -> None:
    shown = row(title="<script>alert(1)</script>", tenant="<b>x</b>")
    for url in (page("delivery"), page("delivery", "change", shown.pk)):
        text = admin_client.get(url).text
        assert "<script>alert(1)" not in text
        assert "<b>x</b>" not in text
