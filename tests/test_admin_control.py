"""Admin pages of what was refused and of drills: only looked at."""

from __future__ import annotations

import datetime as dt

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from token_allowance.models import Drill, Refusal

pytestmark = pytest.mark.django_db

NOON = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
ROWS = {
    "8|user=ana,tenant=acme|cost|day/1/UTC|20261130T000000Z": "tenant acme, user ana: daily cost",
    "9|global|tokens|rolling/3600/UTC|-": "all calls: rolling 1-hour tokens",
    "tenant=acme,feature=agent": "tenant acme, feature agent",
    "request": "request",
}


@pytest.fixture
def staff(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("ana", password="x"))
    return client


def page(model: str, action: str = "changelist", *args: object) -> str:
    return reverse(f"admin:token_allowance_{model}_{action}", args=args)


def test_refusals_say_how_many_why_and_by_what(staff: Client) -> None:
    for key in ROWS:
        row = Refusal.objects.create(
            starts_at=NOON, code="exhausted", key=key, tenant="acme", calls=1_234_567,
            first_at=NOON, last_at=NOON,
        )  # fmt: skip
    text = staff.get(page("refusal")).content.decode()
    assert text.count("1,234,567") == len(ROWS)
    assert [words for words in ROWS.values() if words not in text] == []
    assert "acme" in staff.get(page("refusal", "change", row.pk)).content.decode()
    assert "0 selected" not in staff.get(page("refusal"), {"q": "acme"}).content.decode()


def test_drills_say_what_was_measured(staff: Client) -> None:
    drill = Drill.objects.create(
        feature="agent", percent=1, processes=4, by="ana", slo_ms=5_000, effect_ms=12,
        last_admission_ms=0, calls=1_000, callers=900, attempts=1_800, passed=False,
        codes={"switch_engaged": 900}, error="900 refused calls were tried 1,800 times: retries",
    )  # fmt: skip
    Drill.objects.create(tenant="internal", processes=4, by="ana", slo_ms=5_000)
    text = staff.get(page("drill")).content.decode()
    for words in ("1 % of feature agent", "failed", "12 ms", "2.00", "switch_engaged (900)"):
        assert words in text
    assert "not finished" in text
    assert "were tried" in staff.get(page("drill", "change", drill.pk)).content.decode()


@pytest.mark.parametrize("model", ["refusal", "drill"])
def test_nobody_adds_changes_or_deletes_them(staff: Client, model: str) -> None:
    assert staff.get(page(model, "add")).status_code == 403
    made = {
        "drill": Drill.objects.create(tenant="internal", processes=4, by="ana", slo_ms=5_000),
        "refusal": Refusal.objects.create(
            starts_at=NOON, code="cap", calls=1, first_at=NOON, last_at=NOON
        ),
    }
    assert staff.post(page(model, "delete", made[model].pk)).status_code == 403
