"""``manage.py allowance``: thin commands, each of which says what it did."""

from __future__ import annotations

import datetime as dt
import sys
import uuid
from decimal import Decimal
from io import StringIO
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from token_allowance import conf, leases
from token_allowance.management.subcommands import doctor, rebuild
from token_allowance.models import (
    Channel,
    DegradeRule,
    Drill,
    Limit,
    ModelAlias,
    Price,
    Reservation,
    Switch,
)
from token_allowance.stores.base import Drift

pytestmark = pytest.mark.django_db


def run(*words):
    out = StringIO()
    call_command("allowance", *words, stdout=out)
    return out.getvalue()


def call(**given):
    now = timezone.now()
    row = {
        "id": uuid.uuid4(),
        "state": "settled",
        "model": "m-1",
        "provider": "acme",
        "created_at": now,
        "settled_at": now,
        "expires_at": now,
    }
    return Reservation.objects.create(**{**row, **given})


def price(**given):
    row = {"provider": "acme", "model": "m-1", "input_mtok": Decimal(1), "output_mtok": Decimal(1)}
    return Price.objects.create(**{**row, **given})


def test_sync_prices_fills_an_empty_table_and_then_rests():
    first = run("sync-prices", "--provider", "openai")
    count = Price.objects.filter(provider="openai", source="genai-prices").count()
    assert count == Price.objects.count() > 100
    assert f"Added {count:,} price rows in" in first
    assert Price.objects.filter(model="gpt-5-mini", service_tier="batch").exists()
    second = run("sync-prices", "--provider", "openai")
    assert "Added 0 price rows" in second
    assert "New: 0\nChanged: 0\nRejected: 0\nSame: " in second


def test_sync_prices_dry_run_shows_and_adds_nothing():
    text = run("sync-prices", "--dry-run", "--provider", "anthropic")
    assert "anthropic claude-2: $8.00 in, $24.00 out" in text
    assert "more\n" in text
    assert "Would add" in text
    assert not Price.objects.exists()


def test_sync_prices_names_the_providers_there_are():
    with pytest.raises(CommandError, match=r"No provider opnai\. There are: anthropic, "):
        run("sync-prices", "--provider", "opnai")


def test_sync_prices_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "genai_prices.data", None)
    with pytest.raises(CommandError, match=r"pip install .token-allowance\[prices\]"):
        run("sync-prices")


class Fake:
    """A store that answers what a test wants."""

    def __init__(self, *, expired=(0,), drifts=()):
        self.expired, self.drifts, self.asked = list(expired), list(drifts), []

    def expire(self, now, *, charge, most):
        self.asked.append(charge)
        return self.expired.pop(0)

    def rebuild(self, now):
        return self.drifts


@pytest.mark.parametrize(
    ("on_expire", "charged"), [("release", "nothing"), ("charge", "charged as")]
)
def test_jobs_ends_leases_until_none_is_left(settings, monkeypatch, on_expire, charged):
    settings.TOKEN_ALLOWANCE = {"ON_EXPIRE": on_expire}
    store = Fake(expired=[500, 500, 7])
    monkeypatch.setattr(leases, "conf", SimpleNamespace(current=conf.current, store=lambda: store))
    text = run("jobs")
    assert "expire: 1,007 reservations ended without word" in text
    assert charged in text
    assert store.asked == [on_expire == "charge"] * 3


def test_jobs_ends_a_lease_in_the_real_store():
    past = timezone.now() - dt.timedelta(hours=1)
    row = call(state="reserved", settled_at=None, created_at=past, expires_at=past)
    assert "expire: 1 reservation ended" in run("jobs")
    row.refresh_from_db()
    assert row.state == "expired"


def test_rebuild_prints_what_had_drifted(monkeypatch):
    key = "8|tenant=acme|cost|day/1/UTC|20261130T000000Z"
    store = Fake(drifts=[Drift(key, (100, 719), (5, 5))])
    monkeypatch.setattr(rebuild, "conf", SimpleNamespace(store=lambda: store))
    text = run("rebuild")
    assert "tenant acme, daily cost:\n  used was $0.0001, is $0.000719\n" in text
    assert "reserved" not in text


def test_rebuild_without_drift():
    assert run("rebuild") == "No counter had drifted.\n"


def test_status_says_what_is_in_force(settings):
    settings.TOKEN_ALLOWANCE = {"MODE": "observe"}
    Limit.objects.create(tenant="*", amount=1)
    now = timezone.now()
    call(state="reserved", settled_at=None, expires_at=now + dt.timedelta(minutes=5))
    call(state="reserved", settled_at=None, expires_at=now - dt.timedelta(minutes=5))
    Switch.objects.create(feature="agent", reason="runaway loop", by="ops")
    Switch.objects.create(feature="old", reason="over", by="ops", ends_at=now)
    text = run("status")
    assert "Mode: observe (nothing is refused)" in text
    assert "DatabaseStore" in text
    assert "Active limits: 1" in text
    assert "Calls in flight: 1, overdue: 1" in text
    assert "Engaged switches: 1\n  feature agent: by ops since" in text
    assert "runaway loop" in text
    assert "Alerts: 0 open; messages waiting: 0, given up: 0" in text


def test_doctor_is_content(settings):
    settings.TOKEN_ALLOWANCE = {"ATTRIBUTION": "tests.host.urls.who_pays"}
    price()
    Limit.objects.create(tenant="*", amount=1)
    DegradeRule.objects.create(from_model="*", max_output_tokens=100)
    Drill.objects.create(tenant="internal", processes=4, by="ana", slo_ms=5_000, passed=True)
    Channel.objects.create(name="ops", kind="email", address="ops@example.com")
    lines = run("doctor").splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * 7


def test_doctor_fails_with_sentences(settings):
    settings.MIDDLEWARE = []
    Limit.objects.create(model="m-9", amount=1)
    ModelAlias.objects.create(alias="chat", provider="acme", model="m-8")
    call(model="m-7", flags=["unpriced"])
    call(model="m-7", flags=["unpriced", "estimated"])
    call(model="m-6", flags=["estimated"])
    out = StringIO()
    with pytest.raises(CommandError, match="4 problems found"):
        call_command("allowance", "doctor", stdout=out)
    text = out.getvalue()
    assert "There are no prices: run manage.py allowance sync-prices." in text
    assert "Alias chat stands for a model without a price" in text
    assert "model m-9 has no price" in text
    assert "acme m-7 has no price; calls in 7 days: 2." in text
    assert "m-6" not in text
    assert "MIDDLEWARE has no" in text


def test_c92_doctor_warns_of_sessions_limited_alone(settings):
    settings.TOKEN_ALLOWANCE = {}
    price()
    Limit.objects.create(session="*", amount=1)
    assert "whoever drops a cookie starts" in run("doctor")
    Limit.objects.create(tenant="*", user="*", amount=1)
    assert "cookie" not in run("doctor")


def test_doctor_says_what_enforcing_would_have_meant(settings):
    settings.TOKEN_ALLOWANCE = {"MODE": "observe"}
    price()
    assert "would have been refused" not in run("doctor")
    call(flags=["would_refuse"])
    call(flags=["would_refuse", "unattributed"])
    call(flags=["estimated"])
    call(flags=["would_refuse"], created_at=timezone.now() - dt.timedelta(days=8))
    assert "would have been refused: 2; that name nobody: 1." in run("doctor")


def test_doctor_warns_where_nothing_names_a_tenant(settings):
    settings.TOKEN_ALLOWANCE = {}
    price()
    Limit.objects.create(user="*", amount=1)
    assert "nothing names a tenant" not in run("doctor")
    Limit.objects.create(tenant="*", amount=1)
    assert "1 limit looks at the tenant, and nothing names a tenant for req" in run("doctor")
    settings.TOKEN_ALLOWANCE = {"TRUSTED_HEADERS": {"tenant": "X-Tenant"}}
    assert "nothing names a tenant" not in run("doctor")


def test_doctor_warns_of_a_limit_of_nothing(settings):
    settings.TOKEN_ALLOWANCE = {}
    price()
    limit = Limit.objects.create(user="*", amount=0)
    assert "$0.00 per day for each user: it admits nothing" in run("doctor")
    Limit.objects.filter(pk=limit.pk).update(is_active=False)
    assert "admits nothing" not in run("doctor")


@pytest.mark.parametrize(
    ("limit", "rule", "said"),
    [
        ({}, None, "One limit has a level from which calls become cheaper, and no degrade rule"),
        ({"degrade_at": None}, None, None),
        ({"mode": "observe"}, None, None),
        ({"is_active": False}, None, None),
        ({}, {"is_active": False}, "no degrade rule is in force"),
        ({}, {}, None),
        ({"model": "gpt-5"}, {}, None),
        ({"model": "gpt-5-2025-08-07"}, {}, None),
        ({"model": "*", "feature": "*"}, {"feature": "chat"}, None),
        ({"model": "o3"}, {"from_model": "*"}, None),
        ({"model": "o3"}, {}, "no degrade rule is for any of them"),
        ({"feature": "agent"}, {"feature": "chat"}, "no degrade rule is for any of them"),
        ({"model": "cheap"}, {"from_model": "*"}, "no degrade rule is for any of them"),
        ({"model": "cheap"}, {"from_model": "*", "max_output_tokens": 9}, None),
        ({"degrade_at": 100}, {}, "calls are refused before they become cheaper"),
        ({"degrade_at": 100, "hard_stop_percent": 120}, {}, None),
    ],
)
def test_doctor_warns_of_a_ladder_that_does_nothing(settings, limit, rule, said):
    settings.TOKEN_ALLOWANCE = {}
    for model in ("cheap", "o3", "gpt-5"):
        price(model=model)
    Limit.objects.create(**{"user": "*", "amount": 1_000, **limit})
    if rule is not None:
        DegradeRule.objects.create(**{"from_model": "gpt-5", "to_model": "cheap", **rule})
    text = run("doctor")
    words = ("become cheaper", "should become", "are not degraded")
    if said is None:
        assert not any(word in text for word in words)
    else:
        assert said in text


def test_doctor_names_a_cheaper_model_without_a_price(settings):
    settings.TOKEN_ALLOWANCE = {}
    price()
    DegradeRule.objects.create(from_model="*", to_model="cheap")
    assert "cheap" not in run("doctor")  # no cost is limited
    Limit.objects.create(user="*", amount=1_000)
    out = StringIO()
    with pytest.raises(CommandError, match="1 problem found"):
        call_command("allowance", "doctor", stdout=out)
    assert "Degrade rule every model → cheap: cheap has no price" in out.getvalue()


def test_doctor_warns_of_a_step_to_a_dearer_model(settings):
    settings.TOKEN_ALLOWANCE = {}
    price(model="big", input_mtok=2, output_mtok=8)
    price(model="small", input_mtok=Decimal("0.5"), output_mtok=8)
    rule = DegradeRule.objects.create(from_model="big", to_model="small")
    DegradeRule.objects.create(from_model="*", to_model="big")
    assert "no cheaper" not in run("doctor")
    price(model="other", input_mtok=2, output_mtok=8)
    DegradeRule.objects.filter(pk=rule.pk).update(to_model="other")
    assert "Degrade rule big → other: at acme other is no cheaper." in run("doctor")


def test_doctor_before_migrate_names_the_command(monkeypatch):
    monkeypatch.setattr(doctor, "tables", lambda alias: ["auth_user"])
    with pytest.raises(CommandError, match=r"run manage\.py migrate"):
        run("doctor")


def test_doctor_names_a_setting_that_cannot_be_used(settings):
    settings.TOKEN_ALLOWANCE = {"MOED": "observe"}
    out = StringIO()
    with pytest.raises(CommandError):
        call_command("allowance", "doctor", stdout=out)
    assert "did you mean 'MODE'?" in out.getvalue()


def test_a_missing_subcommand_lists_them():
    with pytest.raises(CommandError, match="SUBCOMMAND"):
        run()


def test_price_shows_the_names_tried_and_the_row_chosen():
    price(model="gpt-5.6-x", provider="openai", input_mtok=Decimal("1.25"), output_mtok=10)
    price(model="gpt-5.6-x", provider="openai", min_input_tokens=200_001, input_mtok=Decimal("2.5"),
          output_mtok=15, source="admin")  # fmt: skip
    text = run("price", "gpt-5.6-x-2026-07-09", "--input", "300000")
    assert "openai: gpt-5.6-x-2026-07-09" in text
    assert "names tried: gpt-5.6-x-2026-07-09 (no rows), gpt-5.6-x (2 rows)" in text
    assert "of admin, tier default, 200,001 input tokens or more, always" in text
    assert "input_mtok $2.5, output_mtok $15" in text


def test_price_follows_a_declared_alias_c22():
    price(model="gpt-4-1106-preview", provider="openai", input_mtok=10, output_mtok=30)
    ModelAlias.objects.create(alias="chatgpt-v-2", provider="openai", model="gpt-4-1106-preview")
    text = run("price", "chatgpt-v-2", "--provider", "azure")
    assert "is an alias of openai gpt-4-1106-preview" in text
    assert "input_mtok $10, output_mtok $30" in text


def test_price_looks_at_a_date_and_a_tier_c25():
    price(model="m", provider="acme", input_mtok=5, output_mtok=30)
    since = dt.datetime(2026, 8, 21, tzinfo=dt.UTC)
    price(model="m", provider="acme", effective_from=since, input_mtok=4, output_mtok=20)
    price(model="m", provider="acme", service_tier="batch", input_mtok=2, output_mtok=10)
    assert "input_mtok $5," in run("price", "m", "--at", "2026-08-20")
    assert "input_mtok $4," in run("price", "m", "--at", "2026-08-21T00:00:00+00:00")
    assert "input_mtok $2," in run("price", "m", "--tier", "batch")


def test_price_of_an_unknown_model_fails_c20():
    price(model="claude-opus-4-1", provider="anthropic")
    with pytest.raises(CommandError, match=r"claude-opus-4\.1 has no price"):
        run("price", "claude-opus-4.1")
    with pytest.raises(CommandError, match="--at soon"):
        run("price", "claude-opus-4-1", "--at", "soon")


def test_price_of_a_misspelt_model_names_the_near_ones():
    price(model="gpt-5-mini", provider="openai")
    with pytest.raises(CommandError, match=r"Did you mean gpt-5-mini\?"):
        run("price", "gpt5-mini")
    with pytest.raises(CommandError) as nothing_near:
        run("price", "llama")
    assert "Did you mean" not in str(nothing_near.value)


def test_sync_prices_says_why_prices_are_left_out_only_when_asked():
    assert "Left out," not in run("sync-prices", "--dry-run")
    assert "Left out, " in run("sync-prices", "--dry-run", "-v", "2")
