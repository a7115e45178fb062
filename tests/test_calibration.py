"""Estimates corrected by what settled calls reported."""

from __future__ import annotations

from decimal import Decimal

import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from project.provider import Reply
from tests.metering import ESTIMATE, GPT, Lab, create
from token_allowance import calibration
from token_allowance.estimate.calibration import factor
from token_allowance.plans import Attempt

ASKED_TOKENS = ESTIMATE["openai"].input_tokens
CALIBRATE = {"calibrate": True}


@pytest.fixture(autouse=True)
def _forgotten():
    calibration.current.clear()
    yield
    calibration.current.clear()


def test_ninety_five_in_a_hundred_calls_would_have_fitted():
    pairs = [(100, 60 + n % 100) for n in range(1_000)]
    found = factor(pairs)
    assert found == Decimal("1.54")
    assert sum(reported > estimated * found for estimated, reported in pairs) <= 50


@pytest.mark.parametrize(
    ("rows", "reported", "expected"),
    [
        (19, 200, "1"),  # too few to teach anything
        (20, 200, "2"),
        (199, 70, "1"),  # too few to lower an estimate
        (200, 70, "0.7"),
        (200, 10, "0.5"),
        (200, 900, "3"),
    ],
)
def test_the_factor_is_bounded_and_a_few_calls_only_raise_it(rows, reported, expected):
    assert factor([(100, reported)] * rows) == Decimal(expected)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=300))
def test_any_figures_have_a_factor(pairs):
    assert Decimal("0.5") <= factor(pairs) <= 3


@pytest.mark.django_db(transaction=True)
def test_settled_calls_calibrate_the_next_ones():
    with Lab(ESTIMATE=CALIBRATE) as lab:
        lab.provider.script(default=Reply(input_tokens=2 * ASKED_TOKENS, output_tokens=5))
        with lab.client("openai") as client:
            for _ in range(20):
                create(client)
            calibration.current.clear()  # as after five minutes
            create(client)
        *before, last = lab.rows(21)
        assert before[0].raw_usage["token_allowance"] == {"estimated_input_tokens": ASKED_TOKENS}
        assert {row.reserved_tokens for row in before} == {ESTIMATE["openai"].total_tokens}
        assert last.reserved_tokens == 2 * ASKED_TOKENS + ESTIMATE["openai"].output_tokens
        # the estimate that is kept is the one before the factor, else the factor would wander
        assert last.raw_usage == before[0].raw_usage


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("estimate", [{}, {"strict": True, "calibrate": True}])
def test_nothing_is_kept_or_applied_unless_it_was_chosen(estimate):
    with Lab(ESTIMATE=estimate) as lab:
        lab.ask("openai")
        assert "token_allowance" not in lab.row().raw_usage


@pytest.mark.django_db(transaction=True)
def test_flagged_calls_and_those_on_a_kept_context_teach_nothing():
    with Lab(ESTIMATE=CALIBRATE) as lab:
        lab.provider.script(default=Reply(input_tokens=9 * ASKED_TOKENS, output_tokens=5))
        with lab.client("openai") as client:
            for _ in range(20):
                create(client, extra_body={"conversation": "conv_1"})
        rows = lab.rows(20)
        assert all("token_allowance" not in row.raw_usage for row in rows)
        raw = {"token_allowance": {"estimated_input_tokens": 1}}
        type(rows[0]).objects.update(flags=["interrupted"], raw_usage=raw)
        assert calibration.factor("openai", GPT) == 1


@pytest.mark.django_db(transaction=True)
def test_the_ledger_is_read_once_in_five_minutes(monkeypatch):
    with Lab(ESTIMATE=CALIBRATE):
        calls = []
        monkeypatch.setattr(calibration, "measured", lambda now: calls.append(now) or {})
        attempt = Attempt(provider="openai", model=GPT, input_tokens=10, counted=True)
        assert {attempt.estimate.input_tokens for _ in range(5)} == {10}
        assert len(calls) == 1


@override_settings(TOKEN_ALLOWANCE={"ESTIMATE": {**CALIBRATE, "safety": 1.5}})
def test_a_count_that_the_caller_gave_is_not_calibrated(monkeypatch):
    monkeypatch.setattr(calibration, "measured", lambda now: {("openai", GPT): Decimal("1.2")})
    attempt = Attempt(provider="openai", model=GPT, input_tokens=100)
    assert attempt.estimate.input_tokens == 150
    counted = Attempt(provider="openai", model=GPT, input_tokens=100, counted=True)
    assert counted.estimate.input_tokens == 180
