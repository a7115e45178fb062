"""The longest answer a model can give bounds what a request may reserve (case C42)."""

from __future__ import annotations

from decimal import Decimal

import pytest
from django.test import override_settings

from tests.metering import DATABASE_STORE
from token_allowance import allowance
from token_allowance.estimate.maxima import max_output_tokens
from token_allowance.models import Limit, Price, Reservation
from token_allowance.plans import Attempt


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("asked", "micros"),
    [(None, 10_990), (8_000, 80_750), (999_999_999, 164_590)],
)
def test_case_c42_a_missing_or_absurd_maximum_does_not_take_all_the_room(asked, micros):
    Price.objects.create(
        provider="openai", model="gpt-4o", input_mtok=Decimal("2.5"), output_mtok=Decimal(10)
    )
    Limit.objects.create(tenant="", window="total", unit="cost", amount=10_000_000)
    store = override_settings(TOKEN_ALLOWANCE={"STORE": {"BACKEND": DATABASE_STORE}})
    call = allowance.call(
        provider="openai", model="gpt-4o", input_tokens=300, max_output_tokens=asked
    )
    with store, call:
        call.release()
    assert Reservation.objects.get().reserved_micros == micros


@pytest.mark.parametrize(
    ("model", "longest"),
    [
        ("gpt-4o", 16_384),
        ("gpt-4o-mini-2024-07-18", 16_384),
        ("openai/gpt-4.1-mini", 32_768),
        ("gpt-5-pro-2025-10-06", 272_000),
        ("claude-sonnet-4-5-20250929", 64_000),
        ("my-own-model", None),
    ],
)
def test_the_longest_beginning_of_a_name_tells(model, longest):
    assert max_output_tokens(model) == longest


@override_settings(
    TOKEN_ALLOWANCE={"ESTIMATE": {"model_max_output_tokens": {"mine": 500, "gpt-4o": None}}}
)
def test_a_declared_maximum_goes_first():
    def output_tokens(model, **asked):
        return Attempt(
            provider="openai", model=model, input_tokens=1, **asked
        ).estimate.output_tokens

    assert output_tokens("mine", max_output_tokens=10**9) == 500
    assert output_tokens("mine", max_output_tokens=10**9, choices=3) == 1_500
    assert output_tokens("mine") == 500  # the default of 1,024 is clamped too
    assert output_tokens("gpt-4o", max_output_tokens=10**6) == 10**6  # not clamped
    assert output_tokens("gpt-4o-mini", max_output_tokens=10**6) == 16_384
