"""The ladder: which step is for a call, and the plan it is served by then."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.test import override_settings

from token_allowance import degradation, policy
from token_allowance.ladder import Ladder, Step
from token_allowance.limits import Attribution
from token_allowance.models import DegradeRule, Limit, ModelAlias, Price
from token_allowance.plans import Attempt, Plan, plan
from token_allowance.providers.rewriting import Change
from token_allowance.runs import Run
from token_allowance.switches import engage

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"], transaction=True)
NOW = dt.datetime(2026, 11, 30, 12, 0, tzinfo=dt.UTC)
ANA = Attribution(tenant="acme", user="ana", feature="chat")
STORE = "token_allowance.stores.database.DatabaseStore"


@pytest.fixture(params=["default", "sqlite"])
def alias(request: pytest.FixtureRequest) -> Iterator[str]:
    store = {"BACKEND": STORE, "OPTIONS": {"alias": request.param}}
    degradation._warn.cache_clear()
    with override_settings(TOKEN_ALLOWANCE={"STORE": store}):
        price(request.param, "big", 10, 20)
        price(request.param, "small", 1, 2)
        yield request.param


def price(alias: str, model: str, read: int, written: int, provider: str = "openai") -> None:
    Price.objects.using(alias).create(
        provider=provider, model=model, input_mtok=Decimal(read), output_mtok=Decimal(written)
    )


def rule(alias: str, **given: Any) -> None:
    fields = {"from_model": "big", "to_model": "small", **given}
    DegradeRule.objects.using(alias).create(**fields)


def limit(alias: str, **given: Any) -> None:
    Limit.objects.using(alias).create(**{"amount": 1_000_000, **given})


def asked(model: str = "big", **given: Any) -> Attempt:
    fields = {"provider": "openai", "input_tokens": 100, "max_output_tokens": 50, **given}
    return Attempt(**{"model": model, "changeable": Change.ALL, **fields})


def served(attempt: Attempt, who: Attribution = ANA, *runs: Run) -> Plan:
    decided = policy.confirmed()
    full = plan(attempt, who, runs, decided, NOW)
    return degradation.served(full, runs, decided, NOW)


def seen(found: Plan) -> tuple[str, str, int | None, tuple[str, ...]]:
    """What was asked for, what is sent, the longest answer, the flags."""
    attempt = found.attempt
    return attempt.asked_model, attempt.model, attempt.max_output_tokens, found.flags


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["*/", "big/", "*/chat", "big/chat"], "big/chat"),
        (["*/", "big/", "*/chat"], "*/chat"),
        (["*/", "big/"], "big/"),
        (["*/"], "*/"),
        (["other/", "big/other", "*/other"], None),
        ([], None),
    ],
)
def test_a_feature_goes_before_a_model_and_a_name_before_each(
    names: list[str], chosen: str | None
) -> None:
    steps = [Step(from_model=n.split("/")[0], feature=n.split("/")[1]) for n in names]
    found = Ladder(steps).step("big", "chat")
    assert (found and f"{found.from_model}/{found.feature}") == chosen
    assert bool(Ladder(steps)) is bool(names)


def test_a_step_changes_model_length_price_and_estimate(alias: str) -> None:
    limit(alias)
    rule(alias, max_output_tokens=20)
    found = served(asked())
    assert seen(found) == ("big", "small", 20, ("degraded",))
    assert found.model == "small"
    assert found.amounts.cost_micros == 100 * 1 + 20 * 2
    assert found.amounts.tokens == 120


@pytest.mark.parametrize(
    ("most", "asks", "longest"), [(20, None, 20), (20, 10, 10), (20, 50, 20), (None, 50, 50)]
)
def test_an_answer_is_never_made_longer(
    alias: str, most: int | None, asks: int | None, longest: int
) -> None:
    rule(alias, max_output_tokens=most)
    assert served(asked(max_output_tokens=asks)).attempt.max_output_tokens == longest


def test_a_step_may_only_shorten(alias: str) -> None:
    rule(alias, to_model="", max_output_tokens=20)
    assert seen(served(asked())) == ("", "big", 20, ("degraded",))


def test_a_maximum_that_the_cheaper_model_does_not_have_is_lowered(alias: str) -> None:
    price(alias, "gpt-4", 1, 2)
    rule(alias, to_model="gpt-4")
    assert served(asked(max_output_tokens=100_000)).attempt.max_output_tokens == 8_192


def test_names_are_those_of_limits(alias: str) -> None:
    ModelAlias.objects.using(alias).create(alias="chat-large", provider="openai", model="big")
    rule(alias, from_model="big-2026-01-01")
    for name in ("big", "big-2026-07-09", "chat-large"):
        assert seen(served(asked(name)))[:2] == (name, "small")


def test_a_step_does_not_lead_to_another(alias: str) -> None:
    price(alias, "tiny", 1, 1)
    rule(alias)
    rule(alias, from_model="small", to_model="tiny")
    assert served(asked()).attempt.model == "small"


def test_what_asks_for_no_more_already_is_served_unflagged(alias: str) -> None:
    rule(alias, from_model="*", max_output_tokens=50)
    assert seen(served(asked("small"))) == ("", "small", 50, ())
    assert seen(served(asked("small-2026-01-01", max_output_tokens=60)))[1:3] == (
        "small-2026-01-01",
        50,
    )


@pytest.mark.parametrize(
    ("changeable", "given"),
    [
        (Change.NOTHING, {}),
        (Change.LENGTH, {}),
        (Change.MODEL, {"max_output_tokens": 20}),
        (Change.NOTHING, {"to_model": "", "max_output_tokens": 20}),
    ],
)
def test_a_request_that_cannot_be_changed_so_is_served_in_full(
    alias: str, changeable: Change, given: dict[str, Any]
) -> None:
    rule(alias, **given)
    found = served(asked(changeable=changeable))
    assert seen(found) == ("", "big", 50, ("not_degraded",))


def test_no_step_for_the_call_is_told(alias: str) -> None:
    rule(alias, feature="other")
    rule(alias, is_active=False)
    assert served(asked()).flags == ("not_degraded",)


def test_budgets_are_those_of_the_cheaper_model(alias: str) -> None:
    limit(alias, model="*")
    limit(alias, model="big", unit="tokens")
    rule(alias)
    assert [dict(b.values)["model"] for b in served(asked()).budgets] == ["small"]


def test_a_cheaper_model_without_a_price_serves_where_no_cost_is_limited(alias: str) -> None:
    rule(alias, to_model="local")
    limit(alias, unit="tokens")
    assert seen(served(asked())) == ("big", "local", 50, ("unpriced", "degraded"))
    assert served(asked(), ANA, Run(max_cost_micros=10_000)).flags == ("not_degraded",)
    limit(alias)
    assert served(asked()).flags == ("not_degraded",)


def test_an_unpriced_step_is_warned_of_once(alias: str, caplog: pytest.LogCaptureFixture) -> None:
    rule(alias, to_model="local")
    limit(alias)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            served(asked())
    assert [record.message for record in caplog.records] == [
        "token_allowance: local has no price at openai, so no call is served with it instead"
    ]


def test_a_fallback_price_is_no_price_of_the_cheaper_model(alias: str, settings: Any) -> None:
    settings.TOKEN_ALLOWANCE = {
        "STORE": {"BACKEND": STORE, "OPTIONS": {"alias": alias}},
        "UNKNOWN_MODEL": "fallback",
        "FALLBACK_PRICE": {"input_mtok": "1", "output_mtok": "1"},
    }
    rule(alias, to_model="local")
    limit(alias)
    assert served(asked()).flags == ("not_degraded",)


def test_a_step_for_every_model_leads_only_to_one_of_the_same_provider(alias: str) -> None:
    price(alias, "claude", 3, 15, provider="anthropic")
    rule(alias, from_model="*")
    limit(alias, unit="tokens")
    found = served(asked("claude", provider="anthropic"))
    assert seen(found)[1:] == ("claude", 50, ("not_degraded",))
    assert served(asked()).attempt.model == "small"


def test_a_cheaper_model_that_is_stopped_does_not_serve(alias: str) -> None:
    rule(alias)
    engage(model="small", reason="odd answers", by="ops")
    assert served(asked()).flags == ("not_degraded",)


def test_the_rules_are_read_with_the_policy(alias: str) -> None:
    before = policy.confirmed()
    assert not before.ladder
    rule(alias)
    assert policy.confirmed().version > before.version
    assert policy.confirmed().ladder
    DegradeRule.objects.using(alias).update(is_active=False)
    assert not policy.confirmed().ladder
