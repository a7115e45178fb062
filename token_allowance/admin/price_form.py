"""The form that adds a price, and asks again when it looks like a slip."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils import timezone

from token_allowance.admin.generics import PriceModelForm
from token_allowance.models import Price
from token_allowance.pricing import ModelPrice, choose

FACTOR = 10
RATES = {
    "input_mtok": "Input",
    "output_mtok": "Output",
    "cache_read_mtok": "Cache read",
    "cache_write_5m_mtok": "Cache write for 5 minutes",
    "cache_write_1h_mtok": "Cache write for 1 hour",
    "input_audio_mtok": "Sound in",
    "output_audio_mtok": "Sound out",
    "cache_read_audio_mtok": "Sound read from cache",
    "input_image_mtok": "Pictures in",
    "output_image_mtok": "Pictures out",
    "web_search_thousand": "1,000 web searches",
    "file_search_thousand": "1,000 file searches",
    "request_thousand": "1,000 calls",
    "image_each": "One picture made",
    "audio_hour": "One hour of sound",
    "character_million": "A million characters spoken",
    "page_thousand": "1,000 pages read",
}
TOKENS = [name for name in RATES if name.endswith("_mtok")]
FEES = [name for name in RATES if name not in TOKENS]
SOUNDS_AND_PICTURES = TOKENS[5:]
SURE = f"Asked for when a price is more than {FACTOR} times the bundled one or below a tenth of it."


def per_million(rate: Decimal | None) -> str | None:
    """``$3.00``, or as many decimals as the price has."""
    if rate is None:
        return None
    text = f"{rate.normalize():f}"
    whole, _, decimals = text.partition(".")
    return f"${int(whole):,}.{decimals.ljust(2, '0')}"


class PriceForm(PriceModelForm):
    sure = forms.BooleanField(required=False, label="Yes, I mean this price", help_text=SURE)

    class Meta:
        model = Price
        fields = ["provider", "model", "effective_from", "service_tier", "min_input_tokens", *RATES]
        labels = RATES | {
            "effective_from": "In force from",
            "min_input_tokens": "From this many input tokens",
        }
        help_texts = {
            "provider": "As in the list of prices, such as openai or anthropic.",
            "model": "The exact name that calls use.",
            "effective_from": "Empty: for calls of any date that no dated price of yours covers.",
            "service_tier": "Such as batch, flex or priority. Empty: the default tier.",
            "min_input_tokens": "A price for long prompts holds for the whole call, from this many "
            "input tokens on. 0: any call.",
            "cache_read_mtok": "Empty: as input.",
            "cache_write_5m_mtok": "Empty: as input.",
            "cache_write_1h_mtok": "Empty: as for 5 minutes.",
            **dict.fromkeys(SOUNDS_AND_PICTURES, "Empty: as text."),
            "cache_read_audio_mtok": "Empty: as cache read or sound in, whichever is dearer.",
            "request_thousand": "Beside the tokens, for each call.",
            "image_each": "Only where no output tokens are charged.",
        }

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if "effective_from" in self.fields:
            self.fields["effective_from"].initial = timezone.now().replace(microsecond=0)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        for name in RATES:
            if (rate := cleaned.get(name)) is not None and rate < 0:
                self.add_error(name, "A price cannot be negative.")
        if not self.errors and not cleaned.get("sure"):
            for doubt in doubts(Price(**{k: v for k, v in cleaned.items() if k != "sure"})):
                self.add_error("sure", doubt)
        if not self.errors and taken(cleaned):
            self.add_error("effective_from", "You have such a price from this date already.")
        return cleaned


def taken(cleaned: dict[str, Any]) -> bool:
    """Is there an admin's row of that kind and date? No constraint tells: source is no field."""
    kind = ("provider", "model", "service_tier", "min_input_tokens", "effective_from")
    same = {name: cleaned.get(name) for name in kind}
    return Price.objects.filter(source=Price.ADMIN, **same).exists()


def doubts(price: Price) -> Iterator[str]:
    """Rates that are far from the bundled ones, in words."""
    bundled = choose(
        (_value(row) for row in bundled_rows(price)),
        at=price.effective_from or timezone.now(),
        input_tokens=price.min_input_tokens,
        service_tier=price.service_tier,
    )
    if bundled is None:
        return
    for name, label in RATES.items():
        ours, theirs = getattr(price, name), getattr(bundled, name)
        if ours is None or not theirs:
            continue
        if ours > theirs * FACTOR or ours * FACTOR < theirs:
            per = " per million tokens" if name in TOKENS else ""
            yield (
                f"{label}: {per_million(ours)}{per}, but the bundled price is "
                f"{per_million(theirs)}. Tick the box if you mean it."
            )


def bundled_rows(price: Price) -> QuerySet[Price]:
    same = Price.objects.filter(provider=price.provider, model=price.model)
    return same.exclude(source=Price.ADMIN)


def _value(row: Price) -> ModelPrice:
    names = ("provider", "model", "effective_from", "min_input_tokens", "service_tier", *RATES)
    return ModelPrice(**{name: getattr(row, name) for name in names})
