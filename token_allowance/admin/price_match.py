"""The page that tells which price matches a model."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.admin.helpers import AdminForm
from django.contrib.admin.widgets import AdminSplitDateTime
from django.utils import timezone

from token_allowance.admin.price_form import per_million
from token_allowance.models import Price
from token_allowance.prices.matching import Match, matches


class MatchForm(forms.Form):
    model = forms.CharField(max_length=200, help_text="The name as calls give it.")
    provider = forms.CharField(
        max_length=64, required=False, help_text="Empty: every provider that has the name."
    )
    at = forms.SplitDateTimeField(
        required=False, label="On", widget=AdminSplitDateTime(), help_text="Empty: now."
    )
    input_tokens = forms.IntegerField(required=False, min_value=0, label="Input tokens")
    service_tier = forms.CharField(
        max_length=32, required=False, help_text="Such as batch or flex. Empty: the default tier."
    )

    def matches(self) -> list[Match]:
        given = self.cleaned_data
        return matches(
            given["model"],
            given["provider"],
            at=given["at"] or timezone.now(),
            input_tokens=given["input_tokens"] or 0,
            service_tier=given["service_tier"],
        )


def laid_out(form: MatchForm) -> AdminForm:
    """The form as the admin lays out its own."""
    any_form: Any = form  # it needs no model, whatever its type says
    return AdminForm(any_form, [(None, {"fields": list(form.fields)})], {})


def answers(form: MatchForm) -> list[dict[str, Any]]:
    """For each provider: the match, and the row that was chosen."""
    found = form.matches() if form.is_valid() else []
    rows = Price.objects.in_bulk([match.price.id for match in found if match.price])
    return [
        {"match": match, "row": row, "rates": rates(row) if row else ""}
        for match in found
        for row in [rows.get(match.price.id) if match.price else None]
    ]


def rates(row: Price) -> str:
    """``openai gpt-5-mini: $0.25 in, $2.00 out per million tokens``."""
    read, written = per_million(row.input_mtok), per_million(row.output_mtok)
    return f"{row.provider} {row.model}: {read} in, {written} out per million tokens"
