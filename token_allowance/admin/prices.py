"""Prices: dated rows that are added and never changed, and other names of models."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.utils import timezone

from token_allowance.admin.base import AllowanceAdmin, figure, usd
from token_allowance.admin.price_form import (
    FEES,
    RATES,
    SOUNDS_AND_PICTURES,
    PriceForm,
    bundled_rows,
    per_million,
)
from token_allowance.admin.price_match import MatchForm, answers, laid_out
from token_allowance.models import ModelAlias, Price
from token_allowance.prices.matching import unpriced_calls
from token_allowance.pricing import ModelPrice, cost
from token_allowance.usage import Usage

DEFAULT = "default"
TITLE = "Which price matches a model?"
EXAMPLE = Usage(input_tokens=1_000, output_tokens=500)


class InForceFilter(admin.SimpleListFilter):
    title = "date"
    parameter_name = "date"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("begun", "has begun"), ("future", "in the future")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        now = timezone.now()
        if self.value() == "future":
            return queryset.filter(effective_from__gt=now)
        if self.value() == "begun":
            return queryset.filter(Q(effective_from=None) | Q(effective_from__lte=now))
        return queryset


class ServiceTierFilter(admin.SimpleListFilter):
    title = "service tier"
    parameter_name = "service_tier"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        tiers = Price.objects.order_by("service_tier").values_list("service_tier", flat=True)
        return [(tier or DEFAULT, tier or DEFAULT) for tier in tiers.distinct()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        tier = "" if self.value() == DEFAULT else str(self.value())
        return queryset.filter(service_tier=tier)


@admin.register(Price)
class PriceAdmin(AllowanceAdmin):
    form = PriceForm
    list_display = ["model", "provider", "calls", "read", "written", "example", "begins", "source"]
    in_words = [
        *list_display[:-3],
        "cached",
        "cache_write_5m",
        "cache_write_1h",
        "further",
        *list_display[-3:],
    ]
    list_filter = [
        ("source", admin.AllValuesFieldListFilter),
        ServiceTierFilter,
        InForceFilter,
        ("provider", admin.AllValuesFieldListFilter),
    ]
    search_fields = ["model"]
    search_help_text = "Part of a model's name."
    fieldsets = [
        (None, {
            "fields": ["provider", "model", "effective_from"],
            "description": "A new price replaces, from its date on, the price before it. Earlier "
            "calls keep theirs. Rows cannot be changed or removed.",
        }),
        ("Dollars per million tokens", {
            "fields": ["input_mtok", "output_mtok", "cache_read_mtok", "cache_write_5m_mtok",
                       "cache_write_1h_mtok", "sure"],
        }),
        ("Sound and pictures, dollars per million tokens", {
            "fields": [*SOUNDS_AND_PICTURES],
            "classes": ["collapse"],
        }),
        ("Fees in dollars", {"fields": [*FEES], "classes": ["collapse"]}),
        ("Only for some calls", {"fields": ["service_tier", "min_input_tokens"]}),
    ]  # fmt: skip

    def get_urls(self) -> list[Any]:
        match = self.admin_site.admin_view(self.match)
        return [path("match/", match, name="token_allowance_price_match"), *super().get_urls()]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        seen = {"unpriced": unpriced_calls(timezone.now())}
        return super().changelist_view(request, {**(extra_context or {}), **seen})

    def match(self, request: HttpRequest) -> HttpResponse:
        """Which price matches a model?"""
        if not self.has_view_permission(request):
            raise PermissionDenied
        form = MatchForm(request.GET or None)
        context = {
            **self.admin_site.each_context(request),
            "title": TITLE,
            "original": TITLE,  # the last of the breadcrumbs
            "opts": self.opts,
            "has_view_permission": True,
            "media": self.media + form.media,
            "adminform": laid_out(form),
            "answers": answers(form),
        }
        return render(request, "admin/token_allowance/price/match.html", context)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return self.fieldsets
        return [(None, {"fields": self.in_words})]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return () if obj is None else self.in_words

    def save_model(self, request: HttpRequest, obj: Price, form: Any, change: bool) -> None:
        obj.source = Price.ADMIN
        super().save_model(request, obj, form, change)
        if hidden := hidden_rows(obj):
            text = (
                f"Your rows now replace every bundled price of {obj.model}. "
                f"Add rows of your own for {hidden} too, or such calls cost what this row says."
            )
            self.message_user(request, text, messages.WARNING)

    @admin.display(description="for", ordering="service_tier")
    def calls(self, price: Price) -> str:
        least = price.min_input_tokens
        words = [price.service_tier] if price.service_tier else []
        return ", ".join([*words, *([f"from {least:,} tokens in"] if least else [])]) or "any call"

    @admin.display(description="in / M", ordering="input_mtok")
    def read(self, price: Price) -> str:
        return figure(per_million(price.input_mtok))

    @admin.display(description="out / M", ordering="output_mtok")
    def written(self, price: Price) -> str:
        return figure(per_million(price.output_mtok))

    @admin.display(description="cache read / M")
    def cached(self, price: Price) -> str:
        return figure(per_million(price.cache_read_mtok))

    @admin.display(description="cache write for 5 minutes / M")
    def cache_write_5m(self, price: Price) -> str:
        return figure(per_million(price.cache_write_5m_mtok))

    @admin.display(description="cache write for 1 hour / M")
    def cache_write_1h(self, price: Price) -> str:
        return figure(per_million(price.cache_write_1h_mtok))

    @admin.display(description="sound, pictures, fees")
    def further(self, price: Price) -> str:
        names = [*SOUNDS_AND_PICTURES, *FEES]
        found = [(RATES[n].lower(), per_million(getattr(price, n))) for n in names]
        return "; ".join(f"{label} {rate}" for label, rate in found if rate) or "none"

    @admin.display(description="1k in + 500 out")
    def example(self, price: Price) -> str:
        return usd(cost(EXAMPLE, value(price)).micros)

    @admin.display(description="from", ordering="effective_from")
    def begins(self, price: Price) -> str:
        if price.effective_from is None:
            return "always"
        local = timezone.localtime(price.effective_from)
        return f"{local:%Y-%m-%d %H:%M}"


@admin.register(ModelAlias)
class ModelAliasAdmin(AllowanceAdmin):
    list_display = ["alias", "provider", "model"]
    search_fields = ["alias", "model"]
    search_help_text = "Part of an alias or of a model's name."

    def save_model(self, request: HttpRequest, obj: ModelAlias, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if not Price.objects.filter(provider=obj.provider, model=obj.model).exists():
            text = f"There is no price of {obj.provider} {obj.model} yet: {obj.alias} is unpriced."
            self.message_user(request, text, messages.WARNING)


def value(price: Price) -> ModelPrice:
    """The row's rates as the core's value."""
    rates = {name: getattr(price, name) for name in RATES}
    return ModelPrice(provider=price.provider, model=price.model, **rates)


def hidden_rows(price: Price) -> str:
    """Thresholds and tiers that only the bundled prices have: an own default row hides them."""
    if price.service_tier or price.min_input_tokens:
        return ""
    shapes = {(row.service_tier, row.min_input_tokens) for row in bundled_rows(price)}
    own = Price.objects.filter(provider=price.provider, model=price.model, source=Price.ADMIN)
    missing = sorted(shapes - set(own.values_list("service_tier", "min_input_tokens")))
    words = [
        (f"service tier {tier}" if tier else "calls")
        + (f" with {least:,} input tokens or more" if least else "")
        for tier, least in missing
    ]
    return ", ".join(words)
