"""The length of a rolling window as people write it: "24 hours", "30 days"."""

from __future__ import annotations

import re
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from token_allowance import rolling

SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
WRITTEN = re.compile(rf"([0-9]{{1,9}}) *({'|'.join(SECONDS)})s?", re.IGNORECASE)


def parsed(text: str) -> int:
    """The length in seconds. ValueError says how to write one (case C66)."""
    found = WRITTEN.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            "write a number and seconds, minutes, hours, days or weeks, such as 24 hours or "
            "30 days; a calendar month is a window of its own"
        )
    return rolling.checked_seconds(int(found[1]) * SECONDS[found[2].lower()])


def written(seconds: int) -> str:
    """The text that ``parsed`` reads back; empty for none."""
    if not seconds:
        return ""
    number, unit = rolling.length(seconds).split("-")
    return f"{number} {unit}{'' if number == '1' else 's'}"


class LengthField(forms.CharField):
    """Cleans to seconds; empty is 0."""

    def __init__(self, **options: Any) -> None:
        widget = forms.TextInput({"size": "14", "placeholder": "24 hours"})
        super().__init__(required=False, max_length=40, widget=widget, **options)

    def prepare_value(self, value: Any) -> Any:
        return written(value) if isinstance(value, int) else value

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return 0
        try:
            return parsed(text)
        except ValueError as error:
            raise ValidationError(f"{str(error).capitalize()}.") from None

    def has_changed(self, initial: Any, data: Any) -> bool:
        return super().has_changed(written(initial or 0), data)
