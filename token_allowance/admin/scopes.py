"""A limit's dimension as three words: together, each, or only one value."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from token_allowance import limits

TOGETHER, EACH, ONLY = "together", "each", "only"


class ScopeWidget(forms.MultiWidget):
    use_fieldset = True

    def __init__(self, name: str) -> None:
        choices = [
            (TOGETHER, f"all {name}s together"),
            (EACH, f"each {name} by itself"),
            (ONLY, f"only this {name}:"),
        ]
        label = {"aria-label": f"Which {name}s share a budget", "class": "scope"}
        # The style sheet hides an empty value by its placeholder.
        value = {"aria-label": f"The only {name}", "class": "scope", "placeholder": " "}
        super().__init__([forms.Select(label, choices), forms.TextInput(value)])

    def decompress(self, value: str | None) -> list[str]:
        if not value:
            return [TOGETHER, ""]
        return [EACH, ""] if value == limits.EACH else [ONLY, value]


class ScopeField(forms.MultiValueField):
    """Cleans to ``""``, ``"*"`` or a value, as the model keeps it."""

    def __init__(self, name: str, **options: Any) -> None:
        self.name = name
        fields = (
            forms.ChoiceField(choices=[(c, c) for c in (TOGETHER, EACH, ONLY)]),
            forms.CharField(required=False, strip=True),
        )
        super().__init__(
            fields, widget=ScopeWidget(name), require_all_fields=False, required=False, **options
        )

    def compress(self, data_list: list[str]) -> str:
        choice, value = [*data_list, TOGETHER, ""][:2] if data_list else (TOGETHER, "")
        if choice != ONLY:
            if value:
                raise ValidationError(f'To use the value {value!r} choose "only this {self.name}".')
            return limits.EACH if choice == EACH else ""
        if not value:
            raise ValidationError(f"Say which {self.name}.")
        try:
            return limits.checked_identifier(self.name, value)
        except ValueError as error:
            raise ValidationError(f"{error}.") from None
