"""The page that tells which price matches a model."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminSplitDateTime
from django.utils import timezone

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


def answers(form: MatchForm) -> list[dict[str, Any]]:
    """For each provider: the match, and the row that was chosen."""
    found = form.matches() if form.is_valid() else []
    rows = Price.objects.in_bulk([match.price.id for match in found if match.price])
    return [
        {"match": match, "row": rows.get(match.price.id) if match.price else None}
        for match in found
    ]
