"""The levels of a limit as people write them: "70, 90, 100"."""

from __future__ import annotations

import re
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from token_allowance import levels

BETWEEN = re.compile(r"[\s,;]+")
WRITTEN = re.compile(r"([0-9]{1,3}) ?%?")
WANTED = f"Write whole percentages from 1 to {levels.MOST_PERCENT}, such as 70, 90, 100."


def parsed(text: str) -> list[int]:
    """The levels, each once, lowest first. ValueError for what is none."""
    parts = [WRITTEN.fullmatch(part) for part in BETWEEN.split(text.replace(" %", "%")) if part]
    found = sorted({int(part[1]) for part in parts if part is not None})
    if None in parts or not levels.are_levels(found):
        raise ValueError(WANTED)
    return found


def written(percentages: object) -> str:
    """The text that ``parsed`` reads back; empty for none, and for what no form has written."""
    if not levels.are_levels(percentages) or not isinstance(percentages, list | tuple):
        return ""
    return ", ".join(map(str, percentages))


class PercentagesField(forms.CharField):
    """Cleans to a list, which is empty if nothing is written."""

    def __init__(self, **options: Any) -> None:
        widget = forms.TextInput({"size": "14", "placeholder": "70, 90, 100"})
        super().__init__(required=False, max_length=60, widget=widget, **options)

    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, str) else written(value)

    def clean(self, value: Any) -> Any:
        try:
            return parsed(super().clean(value))
        except ValueError as error:
            raise ValidationError(str(error)) from None

    def has_changed(self, initial: Any, data: Any) -> bool:
        return super().has_changed(written(initial or []), data)
