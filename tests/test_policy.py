"""The policy as calls see it: which rows are loaded, which price is found, what a plan refuses."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.test import override_settings

from token_allowance import policy
from token_allowance.exceptions import SwitchEngaged, Unattributed, UnknownModel
from token_allowance.limits import Attribution
from token_allowance.models import Limit, ModelAlias, Price, Tenant
from token_allowance.plans import Attempt, Plan, plan
from token_allowance.runs import Run
from token_allowance.switches import engage

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"], transaction=True)
NOW = dt.datetime(2026, 11, 30, 12, 0, tzinfo=dt.UTC)
ANA = Attribution(tenant="acme", user="ana")
STORE = "token_allowance.stores.database.DatabaseStore"


@pytest.fixture(params=["default", "sqlite"], autouse=True)
def alias(request: pytest.FixtureRequest) -> Iterator[str]:
    store = {"BACKEND": STORE, "OPTIONS": {"alias": request.param}}
    with override_settings(TOKEN_ALLOWANCE={"STORE": store}):
        yield request.param


def limit(alias: str, **fields: Any) -> Limit:
    return Limit.objects.using(alias).create(**({"amount": 5} | fields))


def price(alias: str, **fields: Any) -> Price:
    row = {"provider": "openai", "model": "gpt-5-mini", "input_mtok": "0.25", "output_mtok": "2"}
    return Price.objects.using(alias).create(**(row | fields))


def found(who: Attribution = ANA) -> list[str]:
    limits = policy.confirmed().limits_for(who)
    return sorted(f"{x.tenant}/{x.user}/{x.session}" for x in limits)


def planned(model: str = "gpt-5-mini", who: Attribution = ANA, **options: Any) -> Plan:
    attempt = Attempt(provider="openai", model=model, input_tokens=100, max_output_tokens=50)
    return plan(attempt, who, options.pop("runs", ()), policy.confirmed(), NOW)


def test_only_what_may_concern_the_call_is_loaded(alias: str) -> None:
    for tenant, user in (("*", "*"), ("acme", ""), ("globex", ""), ("", "ana"), ("", "bob")):
        limit(alias, tenant=tenant, user=user)
    assert found() == ["*/*/", "/ana/", "acme//"]
    assert found(Attribution(tenant="globex", user="eve")) == ["*/*/", "globex//"]


def test_a_change_by_any_writer_is_seen_when_confirmed(alias: str) -> None:
    limit(alias, tenant="*")
    assert found() == ["*//"]
    Limit.objects.using(alias).update(is_active=False)
    assert found() == []
    Limit.objects.using(alias).bulk_create([Limit(user="*", amount=1)])
    assert found() == ["/*/"]


def test_a_tenant_s_zone_moves_its_windows_unless_the_limit_has_its_own(alias: str) -> None:
    limit(alias, tenant="*")
    limit(alias, tenant="*", unit="calls", time_zone="Asia/Tokyo")
    limit(alias, unit="tokens")
    Tenant.objects.using(alias).create(key="acme", time_zone="Europe/Berlin")
    zones = {x.unit.value: x.time_zone for x in policy.confirmed().limits_for(ANA)}
    assert zones["cost"] == "Europe/Berlin"
    assert zones["calls"] == "Asia/Tokyo"
    assert zones["tokens"] not in ("", "Europe/Berlin")


def test_an_admin_s_price_wins_over_an_imported_one(alias: str) -> None:
    price(alias, source="genai-prices", effective_from=NOW - dt.timedelta(days=1))
    price(alias, input_mtok="9")
    chosen = planned().price
    assert chosen is not None
    assert chosen.input_mtok == Decimal(9)


def test_c22_an_alias_wins_and_a_date_is_stripped(alias: str) -> None:
    price(alias)
    ModelAlias.objects.using(alias).create(alias="chat-v-2", provider="openai", model="gpt-5-mini")
    assert planned("chat-v-2").model == "gpt-5-mini"
    assert planned("gpt-5-mini-2025-08-07").model == "gpt-5-mini"
    assert planned("gpt-5-mini-2025-08-07").attempt.model == "gpt-5-mini-2025-08-07"


def test_c20_an_unknown_model_is_refused_where_a_cost_limit_applies(alias: str) -> None:
    price(alias)
    unlimited = planned("gpt-5-mino")
    assert unlimited.flags == ("unpriced",)
    assert unlimited.amounts.cost_micros is None
    with pytest.raises(UnknownModel, match="gpt-5-mino"):
        planned("gpt-5-mino", runs=(Run(max_cost_micros=5),))
    limit(alias, unit="tokens")
    assert planned("gpt-5-mino").flags == ("unpriced",)
    limit(alias, unit="cost")
    with pytest.raises(UnknownModel, match="gpt-5-mino"):
        planned("gpt-5-mino")


def test_c20_observing_admits_an_unknown_model_and_flags_it(alias: str) -> None:
    limit(alias)
    Tenant.objects.using(alias).create(key="acme", mode="observe")
    assert planned("gpt-5-mino").flags == ("unpriced",)


def test_c20_a_fallback_price_is_charged_and_flagged(alias: str) -> None:
    limit(alias)
    given = {
        "STORE": {"BACKEND": STORE, "OPTIONS": {"alias": alias}},
        "UNKNOWN_MODEL": "fallback",
        "FALLBACK_PRICE": {"input_mtok": "5", "output_mtok": "25"},
    }
    with override_settings(TOKEN_ALLOWANCE=given):
        made = planned("gpt-5-mino")
    assert made.amounts.cost_micros == 100 * 5 + 50 * 25
    assert made.flags == ("unpriced",)


def test_a_declared_free_model_is_priced_at_zero(alias: str) -> None:
    limit(alias)
    price(alias, model="local", input_mtok=0, output_mtok=0)
    assert planned("local").amounts.cost_micros == 0
    assert planned("local").flags == ()


@pytest.mark.parametrize("name", ["x" * 201, "a\x00b", ""])
def test_a_name_no_table_could_hold_is_nobody_s_model(name: str) -> None:
    with pytest.raises(UnknownModel, match="not a model name"):
        planned(name)


def test_a_provider_no_table_could_hold_is_nobody_s(alias: str) -> None:
    attempt = Attempt(provider="p" * 65, model="m", input_tokens=1)
    with pytest.raises(UnknownModel, match="provider"):
        plan(attempt, ANA, (), policy.confirmed(), NOW)


def test_c78_a_call_without_the_user_a_limit_looks_at_is_refused(alias: str) -> None:
    price(alias)
    somebody = Attribution(tenant="acme")
    assert planned(who=somebody).flags == ()
    limit(alias, tenant="globex", user="*")
    assert planned(who=somebody).flags == ()  # never matches acme
    limit(alias, user="bob")
    with pytest.raises(Unattributed, match="user"):
        planned(who=somebody)
    with override_settings(
        TOKEN_ALLOWANCE={
            "STORE": {"BACKEND": STORE, "OPTIONS": {"alias": alias}}, "UNATTRIBUTED": "charge"
        }
    ):  # fmt: skip
        assert planned(who=somebody).flags == ()


def test_a_switch_stops_matching_calls_until_it_ends(alias: str) -> None:
    price(alias)
    engage(tenant="acme", user="ana", reason="loop", by="op", minutes=60 * 24 * 365 * 20)
    with pytest.raises(SwitchEngaged, match="loop"):
        planned()
    assert planned(who=Attribution(tenant="acme", user="bob")).flags == ()
    rule = policy.confirmed().switches[0]
    assert rule.ends_at is not None
    assert not rule.stops({"tenant": "acme", "user": "ana"}, rule.ends_at)


def test_an_inactive_tenant_makes_no_calls(alias: str) -> None:
    price(alias)
    Tenant.objects.using(alias).create(key="acme", is_active=False)
    with pytest.raises(SwitchEngaged, match="not active"):
        planned()


def test_budgets_are_remembered_until_the_first_of_them_changes_by_itself(alias: str) -> None:
    limit(alias, tenant="*", window="day")
    limit(alias, user="*", window="rolling", rolling_seconds=86_400)
    limit(alias, window="total", expires_at=NOW + dt.timedelta(minutes=30))
    known = policy.confirmed()
    moments = [NOW, *(NOW + dt.timedelta(minutes=m) for m in (23, 24, 29, 30, 720))]
    seen = [known.opened(ANA, "gpt-5-mini", moment) for moment in moments]
    assert seen[1] is seen[0]  # the slice of the rolling window ends after 24 minutes
    assert seen[2] is not seen[0]
    assert seen[3] is seen[2]
    assert [len(opened.budgets) for opened in seen] == [3, 3, 3, 3, 2, 2]
    assert seen[4].until == NOW + dt.timedelta(minutes=48)
    assert {b.window.start for b in seen[5].budgets} >= {NOW + dt.timedelta(hours=12)}
    assert known.opened(ANA, "gpt-5-mini", NOW).budgets == seen[0].budgets  # a clock went back
