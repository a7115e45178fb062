"""The form of a limit: words and dollars outside, the model's values inside."""

from __future__ import annotations

from typing import Any
from zoneinfo import available_timezones

from django import forms
from django.core.exceptions import ValidationError

from token_allowance import conf, levels, limits
from token_allowance.admin import amounts, offers
from token_allowance.admin.generics import LimitModelForm
from token_allowance.admin.lengths import LengthField
from token_allowance.admin.percentages import PercentagesField
from token_allowance.admin.scopes import ScopeField
from token_allowance.limits import Unit
from token_allowance.models import Limit
from token_allowance.models.revisions import REASON_LENGTH
from token_allowance.windows import Window

HELP = {
    "tenant": "Who shares one budget. Calls of a customer carry its tenant key.",
    "user": "The person or account the call is made for.",
    "session": "A conversation or a run, if your calls say which.",
    "feature": "The part of your product that makes the call, such as support-chat.",
    "model": "The model called, such as gpt-5-mini.",
}
AMOUNT = "Dollars such as 0.50 or 1250; or a whole number of tokens or calls. 0 admits nothing."
KEPT = " What was spent in the current window stays counted when you change the amount."
WINDOW = (
    "A minute runs from 14:05:00 to 14:06:00, an hour from 14:00 to 15:00, a day from 00:00 to "
    "24:00, a week from Monday 00:00, a month from the 1st at 00:00, by the clock of the time "
    "zone below. Then the budget is full again. In total: it never is. The last hours "
    "or days: with a length of 24 hours, what is spent at 14:05 comes back the next day at 14:05 "
    "or up to a twentieth of the length later, in any time zone."
)
ROLLING = "Only for the last hours or days: 90 minutes, 24 hours, 30 days. At most 366 days."
ANCHOR = (
    "A week's first day (1 Monday to 7 Sunday) or a month's (1 to 31; shorter months begin on "
    "their last day). Leave it at 1 for other windows."
)
PLAN = 'Only tenants on this plan. Needs "each tenant by itself".'
NOTIFY = "Percent of the amount used at which people are told. Empty: never."
DEGRADE = (
    "Percent used from which degrade rules give calls a cheaper model or a shorter answer. "
    "Empty: never."
)
HARD_STOP = (
    "Percent used from which calls are refused: 100, or up to 120 where a budget may be passed "
    "a little before it stops."
)
EXPIRES = "From then on the limit is ignored. Empty: it lasts."
ANCHORED = {"week": 7, "month": 31}


def zone_choices() -> list[tuple[str, str]]:
    named = sorted(name for name in available_timezones() if "/" in name)
    default = f"the tenant's own, else {conf.current().zone_name}"
    return [("", default), ("UTC", "UTC"), *((n, n) for n in named if not n.startswith("Etc/"))]


class LimitForm(LimitModelForm):
    amount = forms.CharField(
        max_length=40, widget=forms.TextInput({"inputmode": "decimal", "size": "14"})
    )
    time_zone = forms.ChoiceField(required=False)
    reason = forms.CharField(
        max_length=REASON_LENGTH,
        required=False,
        help_text="Kept in the history of this limit. A change needs one.",
        widget=forms.TextInput({"size": "60"}),
    )
    offers_tenants = False
    only_tenants: frozenset[str] | None = None  # of whoever looks after some only (case C91)

    class Meta:
        model = Limit
        fields = [
            *limits.DIMENSIONS, "plan", "unit", "amount", "window", "rolling_seconds", "anchor_day",
            "time_zone", "notify_at", "degrade_at", "hard_stop_percent", "mode", "is_active",
            "expires_at",
        ]  # fmt: skip
        help_texts = {
            "plan": PLAN,
            "window": WINDOW,
            "anchor_day": ANCHOR,
            "degrade_at": DEGRADE,
            "hard_stop_percent": HARD_STOP,
            "mode": "What happens then. Where any mode says observe, calls are only noted.",
            "expires_at": EXPIRES,
        }
        labels = {
            "anchor_day": "First day",
            "degrade_at": "Degrade at %",
            "hard_stop_percent": "Stop at %",
            "is_active": "In force",
            "expires_at": "Ends",
        }

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for name in limits.DIMENSIONS:
            self.fields[name] = ScopeField(name, help_text=HELP.get(name, ""))
        if self.offers_tenants:
            self.fields["tenant"].widget = offers.TenantWidget("tenant")
        # A limit that is copied or comes from an older zone list keeps its zone.
        choices = zone_choices()
        own = self.instance.time_zone
        self.fields["time_zone"] = forms.ChoiceField(
            choices=choices if own in dict(choices) else [*choices, (own, own)], required=False
        )
        self.fields["rolling_seconds"] = LengthField(label="Length", help_text=ROLLING)
        self.fields["notify_at"] = PercentagesField(
            label="Tell at %", help_text=NOTIFY, initial=list(levels.NOTIFY_AT)
        )
        if "hard_stop_percent" in self.fields:  # not in those of who may only look
            self.fields["hard_stop_percent"].required = False
        self.fields["amount"].help_text = AMOUNT + (KEPT if self.instance.pk else "")
        if self.instance.pk:
            self.initial["amount"] = amounts.written(self.instance.amount, self.instance.unit)
        else:
            self.initial = {"tenant": limits.EACH, "user": limits.EACH, **self.initial}

    def clean_hard_stop_percent(self) -> int:
        given: int | None = self.cleaned_data["hard_stop_percent"]
        if given is not None and not levels.HARD_STOP <= given <= levels.MOST_PERCENT:
            raise ValidationError(f"{levels.HARD_STOP} to {levels.MOST_PERCENT} percent.")
        return levels.HARD_STOP if given is None else given

    def clean_degrade_at(self) -> int | None:
        given: int | None = self.cleaned_data["degrade_at"]
        if given is not None and not levels.are_levels([given]):
            raise ValidationError(f"1 to {levels.MOST_PERCENT} percent, or nothing for never.")
        return given

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        self._clean_amount(cleaned)
        self._clean_plan(cleaned)
        self._clean_anchor(cleaned)
        self._clean_length(cleaned)
        tenant = cleaned.get("tenant", "")
        if self.only_tenants is not None and (
            tenant == limits.EACH or tenant not in self.only_tenants
        ):
            self.add_error("tenant", "Name one of the tenants that you look after.")
        if self.instance.pk and set(self.changed_data) - {"reason"} and not cleaned.get("reason"):
            self.add_error("reason", "Say why: it stays in the history.")
        return cleaned

    def _clean_amount(self, cleaned: dict[str, Any]) -> None:
        if "amount" in cleaned and "unit" in cleaned:
            try:
                cleaned["amount"] = amounts.parsed(cleaned["amount"], Unit(cleaned["unit"]))
            except ValueError as error:
                text = str(error)
                self.add_error("amount", f"{text[:1].upper()}{text[1:]}.")

    def _clean_plan(self, cleaned: dict[str, Any]) -> None:
        if cleaned.get("plan") and cleaned.get("tenant", limits.EACH) != limits.EACH:
            self.add_error("plan", 'A plan needs "each tenant by itself" above.')

    def _clean_anchor(self, cleaned: dict[str, Any]) -> None:
        window, anchor = cleaned.get("window"), cleaned.get("anchor_day")
        if window is None or anchor is None:
            return
        highest = ANCHORED.get(window, 1)
        if not 1 <= anchor <= highest:
            allowed = f"1 to {highest}" if highest > 1 else "1, except for weeks and months"
            self.add_error("anchor_day", f"The first day can be {allowed}.")

    def _clean_length(self, cleaned: dict[str, Any]) -> None:
        window, seconds = cleaned.get("window"), cleaned.get("rolling_seconds")
        if window is None or seconds is None:
            return
        if window == Window.ROLLING and not seconds:
            self.add_error("rolling_seconds", "Say how long: 24 hours, 30 days.")
        elif window != Window.ROLLING and seconds:
            self.add_error("rolling_seconds", "Only the last hours or days have a length.")
