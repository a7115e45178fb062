from __future__ import annotations

import decimal
import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from token_allowance.money import ceil_micros
from token_allowance.names import name_candidates
from token_allowance.pricing import Cost, ModelPrice, choose, cost
from token_allowance.usage import Usage

RATES = (
    "input_mtok",
    "output_mtok",
    "cache_read_mtok",
    "cache_write_5m_mtok",
    "cache_write_1h_mtok",
)
NOW = datetime(2026, 8, 21, 12, tzinfo=UTC)
counts = st.integers(0, 10**12)
usages = st.builds(Usage, counts, counts, counts, counts, counts, counts)
rates = st.decimals(0, 10**6, places=12)
maybe_rates = st.none() | rates


def price(*values: str | None, **fields) -> ModelPrice:
    """A price from its rates in the order of RATES."""
    named = {
        name: None if v is None else Decimal(v) for name, v in zip(RATES, values, strict=False)
    }
    return ModelPrice(**{"provider": "p", "model": "m", **named, **fields})


SONNET = price("3", "15", "0.30", "3.75")


@pytest.mark.parametrize(
    ("usage", "micros", "exact"),
    [
        pytest.param(Usage(12_307, 550, 0, 12_304), 54_399, "54399", id="C01"),
        pytest.param(Usage(39_019, 200, 35_000, 4_000), 28_557, "28557", id="C02"),
        pytest.param(Usage(2_000, 0, 500, 300), 4_875, "4875", id="C04 gateway"),
        pytest.param(Usage(2_800, 0, 500, 300), 7_275, "7275", id="C04 native"),
        pytest.param(Usage(), 0, "0", id="nothing"),
    ],
)
def test_cases_of_cached_input(usage, micros, exact):
    charged = cost(usage, SONNET)
    assert charged.micros == micros
    assert charged.exact == Decimal(exact)


def test_case_c03_cached_input_at_its_own_price():
    charged = cost(Usage(44_341, 0, 41_518), price("1.40", "0", "0.26"))
    assert charged.exact == Decimal("14746.88")
    assert charged.micros == 14_747


@pytest.mark.parametrize(
    ("written", "written_1h", "micros"),
    [(344_139, 344_139, 3_441_390), (1_000_000, 400_000, 7_750_000), (1_000_000, 0, 6_250_000)],
)
def test_case_c05_writes_for_an_hour_have_their_own_price(written, written_1h, micros):
    usage = Usage(written, 0, 0, written, written_1h)
    assert cost(usage, price("5", "25", None, "6.25", "10")).micros == micros


def test_case_c06_half_a_micro_is_rounded_up():
    assert cost(Usage(15, 1_020, reasoning_tokens=661), price("0.30", "2.50")).micros == 2_555


def test_case_c19_cached_counts_above_the_input_are_cut_down():
    deepseek = price("0.27", "0", "0.07")
    assert cost(Usage(100, 0, cache_read_tokens=150), deepseek).parts == {"cache_read": Decimal(7)}
    both = cost(Usage(100, 0, 60, 90, 200), price("1", "1", "10", "100", "1000"))
    assert both.parts == {"cache_read": Decimal(600), "cache_write_1h": Decimal(40_000)}


def test_cache_prices_that_are_missing_follow_the_next_one():
    usage = Usage(100, 0, 10, 50, 20)  # 40 plain, 10 read, 30 for 5 minutes, 20 for an hour
    plain = cost(usage, price("2", "0"))
    assert plain.exact == 200
    assert cost(usage, price("2", "0", None, "3")).exact == 40 * 2 + 10 * 2 + 30 * 3 + 20 * 3
    assert cost(usage, price("2", "0", "1", None, "4")).exact == 40 * 2 + 10 + 30 * 2 + 20 * 4
    assert cost(usage, price("2", "0", "0", "0", "0")).exact == 80


def test_parts_that_cost_nothing_are_left_out():
    assert cost(Usage(10, 5), price("0", "0")).parts == {}
    assert cost(Usage(10, 5), price("0", "2")).parts == {"output": Decimal(10)}
    parts = cost(Usage(100, 1, 10, 50, 20), price("1", "1", "1", "1", "1")).parts
    assert set(parts) == {"input", "output", "cache_read", "cache_write_5m", "cache_write_1h"}


@given(usages, st.builds(price, rates, rates, maybe_rates, maybe_rates, maybe_rates))
def test_case_c26_the_charge_is_the_sum_of_the_parts_rounded_up_once(usage, row):
    charged = cost(usage, row)
    assert charged.micros == ceil_micros(charged.exact)
    assert charged.exact <= charged.micros < charged.exact + 1
    with decimal.localcontext(prec=200):
        assert charged.exact == sum(charged.parts.values())
    assert all(part > 0 for part in charged.parts.values())


@given(usages, rates)
def test_every_token_is_charged_once(usage, rate):
    flat = price(rate, rate, rate, rate, rate)
    with decimal.localcontext(prec=200):
        assert cost(usage, flat).exact == usage.total_tokens * rate


def test_the_callers_decimal_context_changes_nothing():
    with decimal.localcontext(prec=3):
        assert cost(Usage(44_341, 0, 41_518), price("1.40", "0", "0.26")).micros == 14_747


def test_a_sum_that_would_be_inexact_fails_instead():
    with pytest.raises(decimal.Inexact):
        cost(Usage(10**250 + 1), price("0.1", "0"))


@pytest.mark.parametrize("rate", RATES)
def test_a_price_that_is_no_price_is_refused(rate):
    good = dict.fromkeys(RATES, Decimal(1))
    for bad in ("NaN", "Infinity", "-1", "1e10", "1e-31"):
        with pytest.raises(ValueError, match=rate):
            ModelPrice(provider="p", model="m", **{**good, rate: Decimal(bad)})
    for wrong in (1.0, 1, "1"):
        with pytest.raises(TypeError, match=rate):
            ModelPrice(provider="p", model="m", **{**good, rate: wrong})


def test_a_price_needs_a_date_with_a_zone_and_a_threshold_of_zero_or_more():
    with pytest.raises(ValueError, match="time zone"):
        price("1", "1", effective_from=NOW.replace(tzinfo=None))
    with pytest.raises(ValueError, match="min_input_tokens"):
        price("1", "1", min_input_tokens=-1)


def test_a_price_survives_json():
    full = price(
        *("1.40", "0", "0.26", "3.750", "6"),
        min_input_tokens=200_001,
        service_tier="flex",
        effective_from=NOW,
        source="admin",
        id=7,
    )
    for row in (full, SONNET):
        assert ModelPrice.from_dict(json.loads(json.dumps(row.as_dict()))) == row
    assert full.as_dict()["cache_write_5m_mtok"] == "3.750"
    assert "cache_write_1h_mtok" not in SONNET.as_dict()


GEMINI = [price("1.25", "10"), price("2.50", "15", min_input_tokens=200_001)]


@pytest.mark.parametrize(
    ("input_tokens", "exact", "micros"),
    [(200_000, "260000", 260_000), (200_001, "515002.5", 515_003)],
)
def test_case_c09_the_threshold_prices_the_whole_call(input_tokens, exact, micros):
    row = choose(GEMINI, at=NOW, input_tokens=input_tokens)
    assert row is not None
    charged = cost(Usage(input_tokens, 1_000), row)
    assert charged.exact == Decimal(exact)
    assert charged.micros == micros


def test_case_c10_cache_writes_count_towards_the_threshold():
    long = price("6", "22.50", "0.60", "7.50", min_input_tokens=200_001)
    usage = Usage(212_000, 1_000, 60_000, 140_000)
    row = choose([long, SONNET], at=NOW, input_tokens=usage.input_tokens)
    assert row is long
    assert cost(usage, row).micros == 1_180_500


def test_case_c25_a_call_has_the_price_of_its_moment():
    change = datetime(2026, 8, 21, tzinfo=UTC)
    old, new = price("5", "30"), price("4", "20", effective_from=change)
    later = price("1", "1", effective_from=datetime(2026, 8, 22, tzinfo=UTC))
    moments = [datetime(2026, 8, 20, 23, 59, 59, tzinfo=UTC), change]
    for table in ([old, new], [later, new, old]):
        rows = [choose(table, at=at, input_tokens=1_000_000) for at in moments]
        assert rows == [old, new]
        costs = [cost(Usage(1_000_000, 100_000), row).micros for row in rows if row]
        assert costs == [8_000_000, 6_000_000]


def test_a_newer_date_replaces_the_thresholds_of_the_older_one():
    flat = price("2", "12", effective_from=datetime(2026, 8, 1, tzinfo=UTC))
    assert choose([*GEMINI, flat], at=NOW, input_tokens=500_000) is flat
    long_only = price("9", "9", effective_from=NOW, min_input_tokens=1_000)
    assert choose([*GEMINI, long_only], at=NOW, input_tokens=999) is GEMINI[0]
    assert choose([*GEMINI, long_only], at=NOW, input_tokens=1_000) is long_only


def test_a_service_tier_without_a_row_has_the_default_price():
    default, flex = price("1.25", "10"), price("0.625", "5", service_tier="flex")
    table = [flex, default]
    assert choose(table, at=NOW, input_tokens=1, service_tier="flex") is flex
    assert choose(table, at=NOW, input_tokens=1, service_tier="priority") is default
    assert choose(table, at=NOW, input_tokens=1) is default
    assert choose([flex], at=NOW, input_tokens=1) is None


def test_a_service_tier_has_dates_of_its_own():
    flex = price("0.625", "5", service_tier="flex")
    newer = price("2", "12", effective_from=datetime(2026, 8, 1, tzinfo=UTC))
    assert choose([flex, newer], at=NOW, input_tokens=1, service_tier="flex") is flex


def test_without_a_price_in_force_there_is_none():
    assert choose([], at=NOW, input_tokens=1) is None
    future = price("1", "1", effective_from=datetime(2027, 1, 1, tzinfo=UTC))
    assert choose([future], at=NOW, input_tokens=1) is None
    assert choose(iter([future, SONNET]), at=NOW, input_tokens=1) is SONNET


def test_of_equal_rows_the_later_wins():
    imported, admin = price("1", "1", source="import"), price("2", "2", source="admin")
    assert choose([imported, admin], at=NOW, input_tokens=1) is admin


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("gpt-5-mini", ["gpt-5-mini"]),
        ("gpt-5.6-x-2026-07-09", ["gpt-5.6-x-2026-07-09", "gpt-5.6-x"]),
        ("claude-sonnet-4-5-20250929", ["claude-sonnet-4-5-20250929", "claude-sonnet-4-5"]),
        ("claude-sonnet-4-5@20250929", ["claude-sonnet-4-5@20250929", "claude-sonnet-4-5"]),
        ("mistral-large-latest", ["mistral-large-latest", "mistral-large"]),
        ("claude-opus-4.1", ["claude-opus-4.1"]),  # case C20
        ("gpt-4-1106-preview", ["gpt-4-1106-preview"]),
        ("GPT-5", ["GPT-5"]),
        ("gpt-5-2025-13-07", ["gpt-5-2025-13-07"]),
        ("build-12345678", ["build-12345678"]),
        ("gpt-5-2025-08-07-preview", ["gpt-5-2025-08-07-preview"]),
        ("gpt-5-latest\n", ["gpt-5-latest\n"]),
        ("-latest", ["-latest"]),
        ("", [""]),
    ],
)
def test_case_c22_only_declared_suffixes_are_dropped(model, names):
    assert name_candidates(model) == names


def test_case_c22_a_declared_deployment_wins():
    aliases = {"chatgpt-v-2": "gpt-4-1106-preview"}
    assert name_candidates("chatgpt-v-2", aliases) == ["chatgpt-v-2", "gpt-4-1106-preview"]
    row = price("10", "30")
    assert cost(Usage(9, 28), row).micros == 930


def test_an_alias_is_followed_before_and_after_a_suffix_is_dropped():
    assert name_candidates("fast-latest", {"fast": "gpt-5-2025-08-07"}) == [
        *("fast-latest", "fast", "gpt-5-2025-08-07", "gpt-5")
    ]
    assert name_candidates("fast-latest", {"fast-latest": "gpt-5-2025-08-07"}) == [
        *("fast-latest", "gpt-5-2025-08-07", "gpt-5", "fast")
    ]


def test_aliases_in_a_circle_end():
    assert name_candidates("a", {"a": "b", "b": "a"}) == ["a", "b"]


def test_case_c24_a_tuned_model_never_has_the_price_of_its_base():
    names = name_candidates("ft:gpt-3.5-turbo:acme:bot:abc123")
    assert names == ["ft:gpt-3.5-turbo:acme:bot:abc123", "ft:gpt-3.5-turbo"]
    assert cost(Usage(1_000, 1_000), price("3", "6")).micros == 9_000
    assert name_candidates("ft:gpt-4o-mini-2024-07-18:acme::abc") == [
        *("ft:gpt-4o-mini-2024-07-18:acme::abc", "ft:gpt-4o-mini-2024-07-18", "ft:gpt-4o-mini")
    ]
    assert name_candidates("ft:") == ["ft:"]
    assert name_candidates("ft::acme") == ["ft::acme"]


def test_case_c24_a_router_prefix_counts_only_when_declared():
    assert name_candidates("cx/gpt-5.5") == ["cx/gpt-5.5"]
    assert name_candidates("cx/gpt-5.5", {"cx/gpt-5.5": "gpt-5.5"})[-1] == "gpt-5.5"


def test_no_parts_cost_nothing():
    assert Cost({}).exact == 0
    assert Cost({}).micros == 0
