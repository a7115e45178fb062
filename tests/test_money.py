from __future__ import annotations

import decimal
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from token_allowance.money import MAX_MICROS, ceil_micros, format_usd, to_dollars, to_micros

any_micros = st.integers(0, MAX_MICROS)


@pytest.mark.parametrize(
    ("dollars", "micros"),
    [
        pytest.param(0, 0, id="zero"),
        ("0", 0),
        ("-0", 0),
        (1250, 1_250_000_000),
        ("0.50", 500_000),
        ("0.10", 100_000),
        (Decimal("0.05"), 50_000),
        ("0.000001", 1),
        (" 2.5 ", 2_500_000),
        ("1e3", 1_000_000_000),
        (str(to_dollars(MAX_MICROS)), MAX_MICROS),
    ],
)
def test_dollars_become_micros(dollars, micros):
    assert to_micros(dollars) == micros


@pytest.mark.parametrize(
    ("dollars", "micros"),
    [
        ("0.0000001", 1),
        ("0.0000010000000001", 2),
        ("1e-400", 1),
        ("1." + "0" * 500 + "1", 1_000_001),
    ],
)
def test_a_fraction_of_a_micro_is_rounded_up(dollars, micros):
    assert to_micros(dollars) == micros


@pytest.mark.parametrize("amount", [0.5, 1.0, float("nan"), True, None, b"1", [1]])
def test_case_c73_floats_and_other_types_are_refused(amount):
    with pytest.raises(TypeError, match="must be a Decimal, an integer or text"):
        to_micros(amount)


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        ("NaN", "finite"),
        ("sNaN", "finite"),
        (Decimal("NaN"), "finite"),
        ("Infinity", "finite"),
        ("-Infinity", "finite"),
        ("-1", "negative"),
        pytest.param(-1, "negative", id="minus one"),
        (Decimal("-0.000001"), "negative"),
        ("1e400", "exceed 9007199254.740991"),
        ("1e999999999999999999999", "not an amount"),
        pytest.param(10**6000, "exceed", id="6001 digits"),
        ("9007199254.740992", "exceed"),
        ("9007199254.7409911", "exceed"),
        ("", "not an amount"),
        ("5 dollars", "not an amount"),
        ("$5", "not an amount"),
        ("1,5", "not an amount"),
    ],
)
def test_case_c73_what_is_no_amount_is_refused_with_the_reason(amount, words):
    with pytest.raises(ValueError, match=words) as caught:
        to_micros(amount)
    assert len(str(caught.value)) < 150


def test_case_c60_tenths_of_dollars_add_up_exactly():
    assert to_micros("0.1") + to_micros("0.2") == to_micros("0.3") == 300_000


@given(any_micros)
def test_micros_survive_the_way_through_dollars(micros):
    dollars = to_dollars(micros)
    assert to_micros(dollars) == to_micros(str(dollars)) == micros


def test_the_callers_decimal_context_changes_nothing():
    with decimal.localcontext() as context:
        context.prec = 3
        context.traps[decimal.Inexact] = True
        context.rounding = decimal.ROUND_DOWN
        assert to_micros("1234.5678901") == 1_234_567_891
        assert to_dollars(1_234_567_891) == Decimal("1234.567891")
        assert ceil_micros(Decimal("14746.88")) == 14_747


@pytest.mark.parametrize(
    ("exact", "micros"),
    [("0", 0), ("0.1", 1), ("14746.88", 14_747), ("2554.5", 2_555), ("4875", 4_875), ("7.0", 7)],
)
def test_a_cost_is_rounded_up_to_a_whole_micro(exact, micros):
    assert ceil_micros(Decimal(exact)) == micros


def test_rounding_up_knows_no_limit_of_digits():
    assert ceil_micros(Decimal("9" * 70 + ".5")) == 10**70


@pytest.mark.parametrize("exact", ["NaN", "Infinity", "-Infinity"])
def test_a_cost_that_is_not_finite_is_refused(exact):
    with pytest.raises(ValueError, match="finite"):
        ceil_micros(Decimal(exact))


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "$0.00"),
        (1, "$0.000001"),
        (3_200, "$0.0032"),
        (3_500, "$0.0035"),
        (14_900, "$0.0149"),
        (500_000, "$0.50"),
        (1_000_000, "$1.00"),
        (1_234_500_000, "$1,234.50"),
        (-5_000_000, "-$5.00"),
        (-1, "-$0.000001"),
        (MAX_MICROS, "$9,007,199,254.740991"),
    ],
)
def test_case_c90_amounts_are_shown_exactly(micros, text):
    assert format_usd(micros) == text


@given(any_micros)
def test_case_c90_what_is_shown_is_the_amount(micros):
    shown = format_usd(micros)
    assert to_micros(shown.removeprefix("$").replace(",", "")) == micros
    assert len(shown.partition(".")[2]) >= 2


def test_case_c60_the_highest_amount_is_still_exact_as_a_double():
    assert int(float(MAX_MICROS)) == MAX_MICROS
    assert float(MAX_MICROS) != float(MAX_MICROS - 1)
