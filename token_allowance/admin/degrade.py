"""Degrade rules: what serves a call instead, once a budget has reached its level."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest

from token_allowance import limits
from token_allowance.admin.base import NOTHING, AllowanceAdmin
from token_allowance.admin.generics import DegradeModelForm
from token_allowance.limits import EACH
from token_allowance.models import DegradeRule
from token_allowance.names import family
from token_allowance.prices.matching import priced

FROM = (
    "The model that calls ask for, such as gpt-5; its dated names are meant too. Empty: every "
    "model whose provider has a price for the one below."
)
TO = (
    "What answers instead: a cheaper model of the same provider, by the name that the provider "
    "knows. It must take what is sent to the other one. Empty: the model stays."
)
SHORTER = (
    "At most so many tokens an answer; a call that asks for fewer keeps its own maximum. Empty: "
    "the length stays."
)
FEATURE = "Only calls of this feature, such as support-chat. Empty: of any."
ACTIVE = "A rule for a feature goes before one for any, and a model's own before every model's."


class DegradeRuleForm(DegradeModelForm):
    from_model = forms.CharField(
        label="Instead of", required=False, max_length=limits.IDENTIFIER_LENGTH, help_text=FROM
    )

    class Meta:
        model = DegradeRule
        fields = ["from_model", "feature", "to_model", "max_output_tokens", "is_active"]
        labels = {
            "to_model": "Serve with",
            "max_output_tokens": "Longest answer",
            "is_active": "In force",
        }
        help_texts = {
            "to_model": TO,
            "max_output_tokens": SHORTER,
            "feature": FEATURE,
            "is_active": ACTIVE,
        }

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.initial.get("from_model") == EACH:
            self.initial["from_model"] = ""

    def clean_from_model(self) -> str:
        return _named("Instead of", self.cleaned_data["from_model"]) or EACH

    def clean_to_model(self) -> str:
        return _named("Serve with", self.cleaned_data["to_model"])

    def clean_feature(self) -> str:
        return _named("The feature", self.cleaned_data["feature"])

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if self.errors:
            return cleaned
        model, shorter = cleaned["to_model"], cleaned["max_output_tokens"]
        if shorter == 0:
            self.add_error("max_output_tokens", "An answer has at least one token.")
        elif not model and shorter is None:
            self.add_error(None, "Name a cheaper model, or a longest answer, or both.")
        elif model and shorter is None and family(model) == family(cleaned["from_model"]):
            self.add_error("to_model", "This is the same model.")
        return cleaned


@admin.register(DegradeRule)
class DegradeRuleAdmin(AllowanceAdmin):
    form = DegradeRuleForm
    list_display = ["calls", "served_with", "longest", "is_active"]
    list_filter = ["is_active"]
    search_fields = ["from_model", "to_model", "feature"]
    search_help_text = "Part of a model's name or of a feature."

    def save_model(self, request: HttpRequest, obj: DegradeRule, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if obj.to_model and not priced(obj.to_model):
            text = (
                f"There is no price of {obj.to_model} yet: calls whose cost is limited are not "
                "degraded."
            )
            self.message_user(request, text, messages.WARNING)

    @admin.display(description="instead of", ordering="from_model")
    def calls(self, rule: DegradeRule) -> str:
        model = "every model" if rule.from_model == EACH else rule.from_model
        return f"{model}, feature {rule.feature}" if rule.feature else model

    @admin.display(description="serve with", ordering="to_model")
    def served_with(self, rule: DegradeRule) -> str:
        return rule.to_model or "the same model"

    @admin.display(description="longest answer", ordering="max_output_tokens")
    def longest(self, rule: DegradeRule) -> str:
        most = rule.max_output_tokens
        return NOTHING if most is None else f"{most:,} tokens"


def _named(field: str, text: str) -> str:
    """The value as calls have it, ``""`` for none."""
    try:
        return limits.checked_identifier(field, text) if text else ""
    except ValueError as error:
        raise ValidationError(f"{error}.") from None
