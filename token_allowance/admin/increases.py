"""More than a limit allows, for a while: granted on the limit's page, never changed afterwards."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from token_allowance.admin import amounts, offers
from token_allowance.admin.base import NOTHING
from token_allowance.admin.generics import IncreaseFormSet, IncreaseModelForm, Increases
from token_allowance.limits import EACH, Unit
from token_allowance.models import Limit, LimitIncrease

MORE = "On top of the amount above, in its unit."
SHOWN = 50


class IncreaseForm(IncreaseModelForm):
    amount = forms.CharField(
        max_length=40, widget=forms.TextInput({"size": "10", "inputmode": "decimal"})
    )

    def __init__(self, *args: Any, limit: Limit, **options: Any) -> None:
        super().__init__(*args, **options)
        self.instance.limit = limit
        self.fields["amount"].help_text = MORE
        for name in ("tenant", "user"):
            self.fields[name].disabled = getattr(limit, name) != EACH
            self.fields[name].help_text = f"Empty: every {name}'s budget."
        self.fields["tenant"].widget.attrs["list"] = offers.TENANTS

    def clean_amount(self) -> int:
        try:
            amount = amounts.parsed(self.cleaned_data["amount"], Unit(self.instance.limit.unit))
        except ValueError as error:
            text = str(error)
            raise ValidationError(f"{text[:1].upper()}{text[1:]}.") from None
        if not amount:
            raise ValidationError("Write more than 0.")
        return amount

    def clean_until(self) -> Any:
        if self.cleaned_data["until"] <= timezone.now():
            raise ValidationError("This moment has passed.")
        return self.cleaned_data["until"]


class IncreasesOfLimit(IncreaseFormSet):
    def get_form_kwargs(self, index: int | None) -> dict[str, Any]:
        return {**super().get_form_kwargs(index), "limit": self.instance}


class IncreaseInline(Increases):
    """Only for adding: what was granted before is listed above."""

    model = LimitIncrease
    form = IncreaseForm
    formset = IncreasesOfLimit
    fields = [("tenant", "user"), ("amount", "until"), "reason"]
    extra = 1
    max_num = 1
    can_delete = False
    verbose_name = "allow more for a while"
    verbose_name_plural = "allow more for a while"

    def get_queryset(self, request: HttpRequest) -> QuerySet[LimitIncrease]:
        return super().get_queryset(request).none()

    def has_change_permission(self, request: HttpRequest, obj: Limit | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Limit | None = None) -> bool:
        return self.has_add_permission(request, obj)


def in_words(limit: Limit) -> str | SafeString:
    """What was granted, the latest first; what has ended says so."""
    now = timezone.now()
    lines = [
        (
            amounts.text(row.amount, limit.unit),
            row.whom,
            "until" if now < row.until else "ended",
            timezone.localtime(row.until).strftime("%Y-%m-%d %H:%M"),
            row.by or "an unnamed writer",
            f": {row.reason}" if row.reason else "",
        )
        for row in limit.increases.all()[:SHOWN]
    ]
    return format_html_join("", "<div>{} more for {}, {} {}, by {}{}</div>", lines) or NOTHING
