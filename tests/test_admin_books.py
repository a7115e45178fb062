"""Admin pages of what other code writes: adjustments, roll-ups, the outbox. Only looked at."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from token_allowance.admin import paginators
from token_allowance.admin.base import AllowanceAdmin
from token_allowance.models import Adjustment, DeadLetter, HourlySpend, Outbox, PendingSettlement

pytestmark = pytest.mark.django_db

NAMES = ["adjustment", "hourlyspend", "outbox", "deadletter", "pendingsettlement"]
NOON = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
DAY = "7|tenant=acme,user=u_1|cost|day/1/UTC|20261130T000000Z"


def page(model: str, action: str = "changelist", *args: Any) -> str:
    return reverse(f"admin:token_allowance_{model}_{action}", args=args)


def adjustment(**given: Any) -> Adjustment:
    row = {
        "id": uuid.uuid4(), "key": DAY, "tenant": "acme", "user": "u_1", "unit": "cost",
        "amount": -1_250_000, "reason": "runaway loop", "by": "ana", "created_at": NOON,
    }  # fmt: skip
    return Adjustment.objects.create(**{**row, **given})


def made(name: str, place: int = 0) -> Any:
    """A row; another one for each place."""
    if name == "adjustment":
        return adjustment()
    if name == "hourlyspend":
        return HourlySpend.objects.create(
            starts_at=NOON - dt.timedelta(hours=place), tenant="acme", user="u_1", feature="chat",
            provider="openai", model="gpt-5-mini", calls=3, cost_micros=1_250_000,
            estimated_micros=250_000,
        )  # fmt: skip
    if name == "outbox":
        return Outbox.objects.create(prefix="shop", watermark="17-0", epoch=2)
    if name == "deadletter":
        return DeadLetter.objects.create(
            prefix="shop", event_id=f"{place}-0", payload=b"secret bytes", error="no such\ntrace"
        )
    return PendingSettlement.objects.create(id=uuid.uuid4(), document={"state": "settled"})


@pytest.fixture
def staff(client: Client) -> Client:
    """A client signed in as staff who may only look."""
    user = User.objects.create_user("viewer", password="x", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(
            content_type__app_label="token_allowance", codename__startswith="view"
        )
    )
    client.force_login(user)
    return client


@pytest.mark.parametrize("name", NAMES)
def test_they_are_only_looked_at_even_by_a_superuser(admin_client: Client, name: str) -> None:
    row = made(name)
    assert admin_client.get(page(name), {"q": "acme"}).status_code == 200
    assert admin_client.get(page(name, "change", row.pk)).status_code == 200
    assert admin_client.get(page(name, "add")).status_code == 403
    assert admin_client.post(page(name, "change", row.pk), {}).status_code == 403
    assert admin_client.post(page(name, "delete", row.pk), {"post": "yes"}).status_code == 403
    assert type(row).objects.count() == 1


@pytest.mark.parametrize("name", NAMES)
def test_staff_who_may_look_see_them(staff: Client, name: str) -> None:
    row = made(name)
    assert staff.get(page(name)).status_code == 200
    assert staff.get(page(name, "change", row.pk)).status_code == 200


@pytest.mark.parametrize("name", [name for name in NAMES if name != "outbox"])
def test_a_long_table_is_never_counted(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, name: str,
    django_assert_max_num_queries: Any,
) -> None:  # fmt: skip
    monkeypatch.setattr(paginators, "MOST", 3)
    monkeypatch.setattr(AllowanceAdmin, "list_per_page", 2)
    tables = {made(name, place)._meta.db_table for place in range(5)}
    with django_assert_max_num_queries(12) as queries:
        text = admin_client.get(page(name)).text
    asked = [q["sql"] for q in queries if any(t in q["sql"] for t in tables)]
    assert [sql for sql in asked if "COUNT(" in sql.upper() or "LIMIT" not in sql.upper()] == []
    assert "The newest" in text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ["tenant acme", "daily cost from 2026-11-30 00:00 UTC", "-$1.25"]),
        ({"amount": 70, "unit": "calls", "user": "", "tenant": "",
          "key": "9|global|calls|total/1/UTC|-"}, ["all calls: total calls", "+70 calls"]),
        ({"amount": -5, "unit": "tokens", "tenant": "",
          "key": "8|user=u_1|tokens|rolling/86400/UTC|1230986"},
         ["user u_1: rolling 24-hour tokens", "-5 tokens"]),
    ],
)  # fmt: skip
def test_an_adjustment_says_whose_budget_was_changed_and_by_how_much(
    admin_client: Client, given: dict[str, Any], words: list[str]
) -> None:
    row = adjustment(**given)
    for text in (
        admin_client.get(page("adjustment")).text,
        admin_client.get(page("adjustment", "change", row.pk)).text,
    ):
        assert [word for word in [*words, "runaway loop", "ana"] if word not in text] == []


def test_adjustments_are_found_by_person_and_filtered_by_unit(admin_client: Client) -> None:
    row = adjustment()
    assert str(row.pk) in admin_client.get(page("adjustment"), {"q": "ana"}).text
    assert str(row.pk) not in admin_client.get(page("adjustment"), {"q": "bob"}).text
    assert str(row.pk) not in admin_client.get(page("adjustment"), {"unit": "calls"}).text


def test_roll_ups_are_shown_in_dollars(admin_client: Client) -> None:
    made("hourlyspend")
    text = admin_client.get(page("hourlyspend"), {"q": "acme"}).text
    assert "$1.25" in text
    assert "$0.25" in text


def test_a_dead_letter_is_named_and_not_shown(admin_client: Client) -> None:
    row = made("deadletter")
    text = admin_client.get(page("deadletter")).text
    assert "no such" in text
    assert "trace" not in text.split("<tbody>")[1].split("</tbody>")[0]
    shown = admin_client.get(page("deadletter", "change", row.pk)).text
    assert "12 bytes" in shown
    assert "secret" not in shown
