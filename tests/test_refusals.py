"""What a refused caller is told: which budget, why, how much is left, and when to come again."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from typing import Any

import pytest
from django.utils import timezone

from project.provider import Reply
from tests.metering import GPT, RESERVED, SDKS, Lab, create
from token_allowance import allowance
from token_allowance.exceptions import (
    AllowanceError,
    AllowanceExceeded,
    CapExceeded,
    SwitchEngaged,
    TooLarge,
    Unattributed,
    UnknownModel,
    UnmeteredEndpoint,
)
from token_allowance.models import Tenant

pytestmark = pytest.mark.django_db(transaction=True)

Usage = allowance.Usage
NOON = dt.datetime(2026, 11, 18, 12, 0, 0, 500_000, tzinfo=dt.UTC)
WHO: dict[str, Any] = {"tenant": "acme", "user": "u_1"}


@pytest.fixture
def lab():
    with Lab() as lab:
        yield lab


@pytest.fixture
def noon(monkeypatch):
    """The application's clock says noon, half a second past."""
    monkeypatch.setattr(timezone, "now", lambda: NOON)


def call(input_tokens: int, output_tokens: int = 0, **who: Any) -> allowance.call:
    return allowance.call(
        provider="openai",
        model=GPT,
        input_tokens=input_tokens,
        max_output_tokens=output_tokens,
        **(who or WHO),
    )


def spend(micros: int, **who: Any) -> None:
    with call(micros, **who) as made:
        made.record(Usage(micros))


def refused(input_tokens: int, **who: Any) -> AllowanceExceeded:
    with pytest.raises(AllowanceExceeded) as caught, call(input_tokens, **who):
        pass
    error = caught.value
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    json.dumps(allowance.problem(error))
    assert str(type(error)(*json.loads(json.dumps(error.args)))) == str(error)
    return error


def test_an_exhausted_budget_tells_when_it_starts_again(lab, noon):
    rule = lab.limit("cost", 500_000, tenant="*", user="*", window="day", time_zone="Europe/Berlin")
    spend(450_000)
    error = refused(80_000)
    assert type(error) is AllowanceExceeded
    assert (error.code, error.reason) == ("user_daily_budget_exceeded", "exhausted")
    assert (error.scope, error.window, error.unit) == ("user", "day", "cost")
    assert (error.amount, error.used, error.reserved) == (500_000, 450_000, 0)
    assert (error.available, error.needed) == (50_000, 80_000)
    # Midnight in Berlin is 23:00 UTC: eleven hours less half a second, rounded up
    assert error.resets_at == dt.datetime(2026, 11, 18, 23, tzinfo=dt.UTC)
    assert error.retry_after_seconds == 11 * 3600
    assert error.limit.id == rule.pk
    assert error.shared is False
    assert str(error) == (
        "user daily budget exceeded: $0.45 of $0.50 used; this call may need $0.08. "
        "It starts again at 2026-11-19 00:00 (Europe/Berlin)."
    )


def test_a_budget_held_by_calls_in_flight(lab, noon):
    lab.limit("cost", 500_000, tenant="*", user="*", window="day")
    spend(400_000)
    with call(80_000) as flying:
        error = refused(80_000)
        flying.release()
    assert (error.reason, error.used, error.reserved) == ("held", 400_000, 80_000)
    assert (error.available, error.needed) == (20_000, 80_000)
    assert error.retry_after_seconds == 12 * 3600  # as the seed story says: to the window's end
    assert "$0.08 reserved by calls in flight" in str(error)
    spend(80_000)


def test_a_call_that_can_never_fit(lab):
    lab.limit("tokens", 30, tenant="*", window="hour")
    error = refused(150)
    assert type(error) is TooLarge
    assert (error.status, error.reason, error.retry_after_seconds) == (422, "too_large", None)
    assert (error.unit, error.amount, error.needed) == ("tokens", 30, 150)
    assert str(error) == (
        "tenant hourly budget exceeded: this call may need 150 tokens, more than the whole budget "
        "of 30 tokens. Ask for a shorter answer or a cheaper model."
    )


def test_a_limit_of_nothing_is_exhausted_not_too_large(lab):
    lab.limit("cost", 0, tenant="*", window="day")
    error = refused(1)
    assert type(error) is AllowanceExceeded
    assert (error.reason, error.amount) == ("exhausted", 0)


def test_a_budget_for_ever_has_no_time_to_come_again(lab):
    lab.limit("calls", 1, tenant="*", user="*", window="total")
    spend(1)
    error = refused(1)
    assert (error.resets_at, error.retry_after_seconds) == (None, None)
    assert str(error) == "user total budget exceeded: 1 of 1 call used; this call may need 1 call."


@pytest.mark.parametrize(
    ("dimensions", "scope", "window", "code"),
    [
        ({}, "global", "minute", "global_per_minute_budget_exceeded"),
        ({"tenant": "*"}, "tenant", "hour", "tenant_hourly_budget_exceeded"),
        ({"tenant": "acme"}, "tenant", "week", "tenant_weekly_budget_exceeded"),
        ({"user": "*"}, "user", "month", "user_monthly_budget_exceeded"),
        ({"feature": "agent"}, "feature", "day", "feature_daily_budget_exceeded"),
        ({"model": "*"}, "model", "day", "model_daily_budget_exceeded"),
        ({"tenant": "*", "feature": "*"}, "tenant feature", "day", None),
    ],
)
def test_the_words_for_scopes_and_windows(lab, dimensions, scope, window, code):
    lab.limit("calls", 1, **dimensions, window=window)
    who = {**WHO, "feature": "agent"}
    spend(1, **who)
    error = refused(1, **who)
    assert (error.scope, error.window) == (scope, window)
    assert error.code == (code or "tenant_feature_daily_budget_exceeded")
    assert str(error).replace("-", " ").startswith(f"{error.code.replace('_', ' ')}: ")


@pytest.mark.parametrize(
    ("dimensions", "who", "shared"),
    [
        ({}, WHO, True),
        ({"tenant": "*"}, WHO, True),
        ({"tenant": "*", "user": "*"}, WHO, False),
        ({"user": "*"}, WHO, False),
        ({"tenant": "*"}, {"tenant": "acme"}, False),
        ({"feature": "*"}, {"tenant": "acme", "feature": "agent"}, True),
    ],
)
def test_a_budget_that_others_spend_from_is_marked(lab, dimensions, who, shared):
    lab.limit("calls", 1, **dimensions, window="day")
    spend(1, **who)
    error = refused(1, **who)
    assert error.shared is shared
    document = allowance.problem(error)
    assert (document.get("available") is None) is shared


def test_of_several_the_budget_that_blocks_longest_is_named(lab, noon):
    lab.limit("calls", 1, tenant="*", window="hour")
    lab.limit("calls", 1, tenant="*", user="*", window="month")
    lab.limit("calls", 1, feature="*", window="day")
    who = {**WHO, "feature": "agent"}
    spend(1, **who)
    assert refused(1, **who).code == "user_monthly_budget_exceeded"


def test_a_refusal_moves_nothing(lab):
    lab.limit("cost", 100, tenant="*", user="*", window="day")
    spend(60)
    before = lab.figures(), [row.pk for row in lab.rows()]
    for _ in range(3):
        refused(60)
    assert (lab.figures(), [row.pk for row in lab.rows()]) == before


def test_the_trace_of_a_refused_call_is_told(lab):
    lab.shrink("calls", 0)
    with allowance.charge_to(trace_id="t-7"):
        assert refused(1).trace_id == "t-7"
    with (
        allowance.charge_to(trace_id="t-8", max_calls=0),
        pytest.raises(CapExceeded) as caught,
        call(1),
    ):
        pass
    assert (caught.value.trace_id, caught.value.code) == ("t-8", "per_request_calls_exceeded")


def _spent(lab: Lab) -> None:
    lab.shrink("calls", 0)


def _too_large(lab: Lab) -> None:
    lab.shrink("tokens", 1)


def _stopped(lab: Lab) -> None:
    allowance.engage(everything=True, reason="drill", by="ann")


def _inactive(lab: Lab) -> None:
    Tenant.objects.create(key="acme", is_active=False)


def _nobody(lab: Lab) -> None:
    lab.limit("calls", 5, session="*")


@pytest.mark.parametrize("sdk", SDKS)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(
    ("prepare", "options", "kind"),
    [
        (_spent, {}, AllowanceExceeded),
        (_too_large, {}, TooLarge),
        (_stopped, {}, SwitchEngaged),
        (_inactive, {}, SwitchEngaged),
        (_nobody, {}, Unattributed),
        (lambda lab: None, {"model": "nobody-knows"}, UnknownModel),
        (lambda lab: None, {"model": ""}, UnmeteredEndpoint),
    ],
    ids=["spent", "large", "switch", "inactive", "nobody", "unpriced", "no-model"],
)
def test_every_refusal_reaches_the_caller_of_an_sdk_as_itself(
    lab, sdk, stream, prepare, options, kind
):
    prepare(lab)
    with (
        allowance.charge_to(**WHO),
        lab.client(sdk, sdk={"max_retries": 2}) as client,
        pytest.raises(AllowanceError) as caught,
    ):
        create(client, stream=stream, **options)
    assert type(caught.value) is kind
    assert allowance.find_refusal(caught.value) is caught.value
    assert lab.requests() == 0
    assert lab.rows() == []


def test_equality_is_admitted_and_one_more_is_not(lab):
    lab.provider.script(default=Reply(input_tokens=0, output_tokens=0))
    lab.shrink("cost", RESERVED["openai"])
    lab.ask("openai")
    assert lab.figures()["cost"] == (RESERVED["openai"], 0)
    assert refused(1).reason == "exhausted"
