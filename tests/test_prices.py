"""Bundled prices: read exactly, kept as dated rows, never rewritten."""

from __future__ import annotations

import datetime as dt
import sys
from collections import defaultdict
from decimal import Decimal

import pytest
from genai_prices.types import (
    ClauseEquals,
    ClauseOr,
    ClauseStartsWith,
    ConditionalPrice,
    ModelInfo,
    PriceVariant,
    Provider,
    StartDateConstraint,
    Tier,
    TieredPrices,
    TimeOfDateConstraint,
)
from genai_prices.types import ModelPrice as Bundled
from genai_prices.types import Usage as BundledUsage

from token_allowance import pricing
from token_allowance.models import Price
from token_allowance.prices import bundled, dated
from token_allowance.usage import Usage

NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
LATER = NOW + dt.timedelta(days=1)


def provider(*models):
    return Provider(id="acme", name="Acme", api_pattern="acme", models=list(models))


def model(prices=None, *, name="m-1", variants=None, match=None, **rates):
    return ModelInfo(
        id=name,
        match=match or ClauseEquals(name),
        prices=prices or Bundled(**{k: Decimal(v) for k, v in rates.items()}),
        price_variants=variants,
    )


def read(*models):
    return bundled.read([provider(*models)])


def sync(*models, now=NOW):
    plan = dated.plan(read(*models).prices, now)
    dated.write(plan.rows)
    return plan


def charged(tier="", tokens=1_000, at=NOW, name="m-1"):
    """Micro-dollars of ``tokens`` in and none out, by the stored rows."""
    names = ("provider", "model", "effective_from", "min_input_tokens", "service_tier")
    rows = [
        pricing.ModelPrice(**{n: getattr(row, n) for n in (*names, *pricing.RATES)})
        for row in Price.objects.filter(model=name)
    ]
    price = pricing.choose(rows, at=at, input_tokens=tokens, service_tier=tier)
    return pricing.cost(Usage(input_tokens=tokens), price).micros


def test_a_tier_starts_with_the_token_after_its_start():
    tiers = TieredPrices(base=Decimal("1.25"), tiers=[Tier(200_000, Decimal("2.50"))])
    output = TieredPrices(base=Decimal(10), tiers=[Tier(200_000, Decimal(15))])
    rows = read(model(Bundled(input_mtok=tiers, output_mtok=output))).prices
    assert [row.min_input_tokens for row in rows] == [0, 200_001]

    def micros(tokens):  # case C09
        price = pricing.choose(rows, at=NOW, input_tokens=tokens)
        return pricing.cost(Usage(input_tokens=tokens, output_tokens=1_000), price).micros

    assert micros(200_000) == 260_000
    assert micros(200_001) == 515_003


def test_cache_prices_fall_into_their_columns():
    [row] = read(
        model(
            input_mtok="3",
            output_mtok="15",
            cache_read_mtok="0.3",
            cache_write_mtok="3.75",
            cache_write_1h_mtok="6",
        )
    ).prices
    assert (row.cache_read_mtok, row.cache_write_5m_mtok, row.cache_write_1h_mtok) == (
        Decimal("0.3"),
        Decimal("3.75"),
        Decimal(6),
    )


def test_a_start_date_becomes_midnight_utc_and_a_service_tier_its_own_rows():
    july = StartDateConstraint(dt.date(2026, 7, 1))
    cheap, dear = (
        Bundled(input_mtok=Decimal(1), output_mtok=Decimal(2)),
        Bundled(input_mtok=Decimal(3), output_mtok=Decimal(4)),
    )
    batch = PriceVariant(
        {"processing": "batch"}, Bundled(input_mtok=Decimal("0.5")), StartDateConstraint(NOW.date())
    )
    rows = read(
        model(
            [ConditionalPrice(prices=cheap), ConditionalPrice(july, prices=dear)], variants=[batch]
        )
    ).prices
    assert [(r.service_tier, r.effective_from, r.input_mtok, r.output_mtok) for r in rows] == [
        ("", None, 1, 2),
        ("", dt.datetime(2026, 7, 1, tzinfo=dt.UTC), 3, 4),
        ("batch", dt.datetime(2026, 11, 30, tzinfo=dt.UTC), Decimal("0.5"), 4),
    ]


def test_only_certain_names_are_stored():
    match = ClauseOr([ClauseEquals("m-1"), ClauseEquals("m-one"), ClauseStartsWith("m-1x")])
    other = model(name="n-2-latest", match=ClauseStartsWith("n-2"), input_mtok="1", output_mtok="1")
    names = [
        p.model for p in read(model(match=match, input_mtok="1", output_mtok="1"), other).prices
    ]
    assert names == ["m-1", "m-one", "n-2-latest", "n-2"]


@pytest.mark.parametrize(("by_day", "by_night"), [(2, 1), (1, 2)])
def test_a_model_with_prices_for_hours_of_the_day_has_its_dearest(by_day, by_night):
    night = TimeOfDateConstraint(dt.time(0, tzinfo=dt.UTC), dt.time(8, tzinfo=dt.UTC))
    prices = [
        ConditionalPrice(prices=Bundled(input_mtok=Decimal(by_day), output_mtok=Decimal(3))),
        ConditionalPrice(
            night, prices=Bundled(input_mtok=Decimal(by_night), output_mtok=Decimal(3))
        ),
    ]
    assert [(row.input_mtok, row.effective_from) for row in read(model(prices)).prices] == [
        (2, None)
    ]


@pytest.mark.parametrize("wrong", ["-1000000", "-0.01", "NaN", "Infinity", "1000000"])
def test_c17_a_negative_or_absurd_price_refuses_the_model(wrong):
    bundle = read(model(input_mtok="1", output_mtok=wrong), model(name="ok", input_mtok="1"))
    assert {row.model for row in bundle.prices} == {"ok"}
    assert bundle.rejected == [
        f"acme m-1: output_mtok of {wrong} dollars per million tokens is refused"
    ]


@pytest.mark.parametrize(
    "rates",
    [
        {"output_mtok": "1"},
        {"audio_hours": "4", "input_text_messages_kcount": "4"},
        {"requests_kcount": "12"},
    ],
)
def test_a_price_that_a_row_cannot_say_is_unknown_and_not_zero(rates):
    bundle = read(model(**rates))
    assert bundle.prices == []
    assert bundle.skipped["prices by units that rows do not have"] == 1


def test_a_model_without_any_price_is_reported_as_such():
    assert read(model(Bundled())).skipped["models without a price"] == 1


def test_sounds_pictures_and_fees_fall_into_their_columns():
    [row] = read(
        model(
            input_mtok="1",
            output_mtok="2",
            cache_read_mtok="0.2",
            input_audio_mtok="3",
            output_audio_mtok="4",
            cache_audio_read_mtok="0.5",
            input_image_mtok="6",
            output_image_mtok="7",
            web_searches_kcount="10",
            storage_searches_kcount="2.5",
            requests_kcount="12",
        )
    ).prices
    found = {name: rate for name in pricing.RATES if (rate := getattr(row, name)) is not None}
    assert found == {
        "input_mtok": 1,
        "output_mtok": 2,
        "cache_read_mtok": Decimal("0.2"),
        "input_audio_mtok": 3,
        "output_audio_mtok": 4,
        "cache_read_audio_mtok": Decimal("0.5"),
        "input_image_mtok": 6,
        "output_image_mtok": 7,
        "web_search_thousand": 10,
        "file_search_thousand": Decimal("2.5"),
        "request_thousand": 12,
    }


@pytest.mark.parametrize(
    ("rates", "usage", "micros"),
    [
        ({"input_audio_hours": "0.36", "audio_hours": "0.36"}, Usage(audio_seconds=10), 1_000),
        ({"audio_hours": "0.111"}, Usage(audio_seconds=60), 1_850),
        ({"input_mchars": "40"}, Usage(characters=25), 1_000),
        (
            {"input_document_kpages": "1", "input_annotated_document_kpages": "3"},
            Usage(pages=2),
            6_000,
        ),
    ],
)
def test_a_model_may_be_priced_by_units_alone(rates, usage, micros):
    [row] = read(model(**rates)).prices
    assert pricing.cost(usage, row).micros == micros


def test_where_only_pictures_come_out_text_is_not_free():
    [row] = read(model(input_mtok="5", output_image_mtok="40")).prices
    assert (row.output_mtok, row.output_image_mtok) == (40, 40)


def test_a_kind_without_a_column_is_reported_and_has_its_parents_price():
    bundle = read(model(input_mtok="1", output_mtok="2", input_video_mtok="3"))
    assert len(bundle.prices) == 1
    assert bundle.skipped["prices of input_video_mtok, which count as their parent"] == 1


def test_an_embedding_has_no_output_to_price():
    [row] = read(model(input_mtok="0.02")).prices
    assert (row.input_mtok, row.output_mtok) == (Decimal("0.02"), 0)


def test_junk_of_floats_is_rounded_to_the_column():
    [row] = read(model(input_mtok="0.13999999999999999", output_mtok="1")).prices
    assert row.input_mtok == Decimal("0.14")


def test_absent_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "genai_prices.data", None)
    with pytest.raises(bundled.NotInstalled, match=r'pip install "token-allowance\[prices\]"'):
        bundled.load()


def test_rows_price_calls_as_the_package_itself_does():
    providers = [p for p in bundled.load() if p.id in ("openai", "anthropic", "google")]
    rows = defaultdict(list)
    for price in bundled.read(providers).prices:
        rows[price.provider, price.model].append(price)
    compared = 0
    for one in providers:
        for name, info in bundled._owners(one).items():
            for tokens in (1_000, 200_000, 200_001):
                if not (mine := rows[one.id, name]):
                    continue
                price = pricing.choose(mine, at=NOW, input_tokens=tokens)
                counts = {"input_tokens": tokens, "output_tokens": 500, "cache_read_tokens": 300,
                          "cache_write_tokens": 200, "cache_write_1h_tokens": 50}  # fmt: skip
                theirs = info.get_prices(NOW).calc_price(BundledUsage(**counts))["total_price"]
                assert pricing.cost(Usage(**counts), price).exact == theirs * 10**6, name
                compared += 1
    assert compared > 500


@pytest.mark.django_db
def test_a_second_run_writes_nothing():
    tiers = TieredPrices(base=Decimal(1), tiers=[Tier(1_000, Decimal(2))])
    models = (
        model(Bundled(input_mtok=tiers, output_mtok=Decimal(1))),
        model(name="b", input_mtok="1"),
    )
    assert len(sync(*models).rows) == 3
    again = sync(*models, now=LATER)
    assert (again.rows, again.new, again.changed, again.same) == ([], [], [], 2)


@pytest.mark.django_db
def test_a_changed_price_is_a_new_row_dated_now():
    sync(model(input_mtok="1", output_mtok="2"))
    plan = sync(model(input_mtok="3", output_mtok="2"), now=LATER)
    assert plan.changed == [
        "acme m-1: $1.00 in, $2.00 out → $3.00 in, $2.00 out from 2026-12-01 12:00 UTC"
    ]
    assert Price.objects.count() == 2
    assert (charged(at=LATER - dt.timedelta(seconds=1)), charged(at=LATER)) == (1_000, 3_000)
    assert sync(model(input_mtok="3", output_mtok="2"), now=LATER + dt.timedelta(days=9)).rows == []


@pytest.mark.django_db
def test_all_thresholds_are_written_when_one_changes():
    def tiered(upper):
        tiers = TieredPrices(base=Decimal(1), tiers=[Tier(1_000, Decimal(upper))])
        return model(Bundled(input_mtok=tiers, output_mtok=Decimal(1)))

    sync(tiered(2))
    plan = sync(tiered(3), now=LATER)
    assert [row.min_input_tokens for row in plan.rows] == [0, 1_001]
    assert charged(tokens=1_001, at=LATER) == 3_003


@pytest.mark.django_db
def test_a_threshold_that_goes_away_is_gone():
    tiers = TieredPrices(base=Decimal(1), tiers=[Tier(1_000, Decimal(2))])
    sync(model(Bundled(input_mtok=tiers, output_mtok=Decimal(1))))
    sync(model(input_mtok="1", output_mtok="1"), now=LATER)
    assert charged(tokens=5_000, at=LATER) == 5_000
    assert charged(tokens=5_000, at=NOW) == 10_000


@pytest.mark.django_db
def test_a_future_price_can_be_corrected_before_it_begins():
    begins = dt.date(2027, 1, 1)

    def coming(rate):
        prices = Bundled(input_mtok=Decimal(rate), output_mtok=Decimal(0))
        now = ConditionalPrice(prices=Bundled(input_mtok=Decimal(1), output_mtok=Decimal(0)))
        return model([now, ConditionalPrice(StartDateConstraint(begins), prices=prices)])

    sync(coming(2))
    assert len(sync(coming(5), now=LATER).rows) == 1
    assert sync(coming(5), now=LATER).rows == []
    assert charged(at=LATER) == 1_000
    assert charged(at=dt.datetime(2027, 1, 2, tzinfo=dt.UTC)) == 5_000


@pytest.mark.django_db
def test_rows_of_admins_and_of_vanished_models_stay():
    own = Price.objects.create(
        provider="acme", model="m-1", input_mtok=Decimal(9), output_mtok=Decimal(9)
    )
    sync(model(input_mtok="1", output_mtok="2"))
    sync(model(name="other", input_mtok="1", output_mtok="2"), now=LATER)
    own.refresh_from_db()
    assert (own.input_mtok, own.source) == (9, "admin")
    assert Price.objects.count() == 3
