"""What somebody orders on the pages that stop calls and let them through again."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django import forms
from django.utils import timezone

from token_allowance import conf
from token_allowance.models import Switch
from token_allowance.stops import ALL_PERCENT
from token_allowance.switches import REASON_LENGTH

ENDS = {"30": "in 30 minutes", "120": "in 2 hours", "": "never: only by hand"}
FIRST_PERCENT = 10
SAME = dt.timedelta(seconds=60)  # two such orders of one person within it are one, sent twice


class StopOrder(forms.Form):
    """Why, for how long, and what becomes of answers that are under way."""

    reason = forms.CharField(
        label="Why",
        max_length=REASON_LENGTH,
        help_text="Colleagues and the code that makes the calls read it; it stays in the history.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "autofocus": True}),
    )
    minutes = forms.ChoiceField(
        label="It ends by itself",
        choices=list(ENDS.items()),
        initial="30",
        required=False,
        widget=forms.RadioSelect,
    )
    cut_streams = forms.BooleanField(
        label="Cut the answers that are being streamed, too",
        help_text="Within about a second; they are charged for what came. Otherwise they finish.",
        required=False,
    )
    phrase = forms.CharField(required=False, widget=forms.TextInput(attrs={"autocomplete": "off"}))

    def __init__(self, *args: Any, everything: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self.label_suffix = ""
        self.wanted = f"stop {conf.current().ENVIRONMENT or 'everything'}"
        if everything:
            self.fields["phrase"].label = f"Type “{self.wanted}”"
            self.fields["phrase"].required = True
        else:
            del self.fields["phrase"]

    def clean_phrase(self) -> str:
        typed = " ".join(str(self.cleaned_data["phrase"]).split())
        if typed.casefold() != self.wanted.casefold():
            raise forms.ValidationError(f"Type “{self.wanted}” to stop every call.")
        return typed

    @property
    def how(self) -> dict[str, Any]:
        """The same as keywords of ``engage``."""
        minutes = self.cleaned_data["minutes"]
        return {
            "reason": self.cleaned_data["reason"],
            "minutes": float(minutes) if minutes else None,
            "cut_streams": self.cleaned_data["cut_streams"],
        }

    def repeats(self, switch: Switch, by: str) -> bool:
        """Is that switch what this very order has engaged, a moment ago?"""
        last = switch.events.order_by("-id").first()
        return (
            last is not None
            and (last.by, last.reason) == (by, self.cleaned_data["reason"])
            and last.cuts_streams == self.cleaned_data["cut_streams"]
            and (last.ends_at is None) == (not self.cleaned_data["minutes"])
            and switch.percent == ALL_PERCENT
            and last.at > timezone.now() - SAME
        )


class ResumeOrder(forms.Form):
    """Why, and whether for all callers at once."""

    part = forms.ChoiceField(
        label="Let through",
        choices=[("all", "all callers"), ("some", f"{FIRST_PERCENT} % of the callers first")],
        initial="all",
        required=False,
        widget=forms.RadioSelect,
    )
    reason = forms.CharField(
        label="Why it may go on",
        max_length=REASON_LENGTH,
        help_text="It stays in the history.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "autofocus": True}),
    )
    #: The reason that was shown: a stop that somebody has ordered meanwhile is not undone.
    stopped_for = forms.CharField(
        required=False, strip=False, max_length=REASON_LENGTH, widget=forms.HiddenInput
    )

    def __init__(self, *args: Any, whole: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self.label_suffix = ""
        if not whole:
            del self.fields["part"]

    @property
    def is_partial(self) -> bool:
        return self.cleaned_data.get("part") == "some"
