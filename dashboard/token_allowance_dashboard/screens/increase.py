"""Granting a tenant more than a limit allows, for a while: a form, a question, then it holds."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from token_allowance.admin import amounts
from token_allowance.limits import EACH, IDENTIFIER_LENGTH, Unit
from token_allowance.models import Limit, LimitIncrease, Tenant
from token_allowance_dashboard import page
from token_allowance_dashboard.access import INCREASE, access, screen
from token_allowance_dashboard.screens.limits import found
from token_allowance_dashboard.screens.tenant import Applied, applied

LOCAL = "%Y-%m-%dT%H:%M"
DEFAULT = dt.timedelta(hours=24)
LONGEST = dt.timedelta(days=366)


class GrantForm(forms.Form):
    limit = forms.TypedChoiceField(label="More of", coerce=int)
    user = forms.CharField(
        label="Only for this user",
        max_length=IDENTIFIER_LENGTH,
        required=False,
        help_text="Empty: for all users of the tenant. Only where each user has a budget.",
    )
    amount = forms.CharField(
        max_length=40,
        help_text="On top of the limit, in its unit: dollars such as 5 or 0.50, or a number.",
        widget=forms.TextInput({"inputmode": "decimal"}),
    )
    until = forms.DateTimeField(
        widget=forms.DateTimeInput({"type": "datetime-local"}, format=LOCAL),
        input_formats=[LOCAL, "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M"],
        help_text="Then it ends by itself.",
    )
    reason = forms.CharField(max_length=500, help_text="Kept with it.")

    def __init__(self, *args: Any, key: str, stack: list[Applied], **options: Any) -> None:
        super().__init__(*args, **options)
        self.key = key
        self.limits = {one.limit.pk: one.limit for one in stack}
        named = [(one.limit.pk, str(one.limit)) for one in stack]
        self.fields["limit"].choices = named  # type: ignore[attr-defined]

    def clean_until(self) -> dt.datetime:
        until: dt.datetime = self.cleaned_data["until"]
        if not timezone.now() < until <= timezone.now() + LONGEST:
            raise ValidationError("A moment to come, within a year.")
        return until

    def clean(self) -> dict[str, Any]:
        cleaned = self.cleaned_data
        if "limit" not in cleaned or "amount" not in cleaned or "until" not in cleaned:
            return cleaned
        row: Limit = self.limits[cleaned["limit"]]
        try:
            amount = amounts.parsed(cleaned["amount"], Unit(row.unit))
        except ValueError as error:
            text = str(error)
            self.add_error("amount", f"{text[:1].upper()}{text[1:]}.")
            return cleaned
        if not amount:
            self.add_error("amount", "Write more than 0.")
            return cleaned
        increase = LimitIncrease(
            limit=row, tenant=self.key if row.tenant == EACH else "", user=cleaned.get("user", ""),
            amount=amount, until=cleaned["until"], reason=cleaned.get("reason", ""),
        )  # fmt: skip
        try:
            increase.clean()
        except ValidationError as error:
            for name, texts in error.message_dict.items():
                self.add_error(name if name in self.fields else None, texts)
        return {**cleaned, "increase": increase}


@require_http_methods(["GET", "HEAD", "POST"])
@screen(INCREASE)
def grant(request: HttpRequest) -> HttpResponseBase:
    now, who = timezone.now(), access(request)
    key = request.GET.get("tenant", "").replace("\x00", "")
    if not key or key == EACH:
        raise Http404
    who.check(key)
    row = Tenant.objects.filter(key=key).first()
    stack = [one for one in applied(key, row.plan if row else "", False, now) if one.raises]
    first = {"limit": request.GET.get("limit", ""), "until": timezone.localtime(now + DEFAULT)}
    form = GrantForm(
        request.POST if request.method == "POST" else None, initial=first, key=key, stack=stack
    )
    step = request.POST.get("step")
    context: dict[str, Any] = {"key": key, "form": form, "stack": stack}
    if step in ("preview", "save") and form.is_valid():
        increase: LimitIncrease = form.cleaned_data["increase"]
        if step == "save":
            increase.by = request.user.get_username()[:IDENTIFIER_LENGTH]
            increase.save()
            messages.success(request, f"Granted: {increase}.", fail_silently=True)
            return redirect(page.address("tenant", key) or "/")
        one = next(a.one for a in stack if a.limit.pk == increase.limit_id)
        carried = [(n, request.POST.get(n, "")) for n in form.fields]
        context |= {"increase": increase, "one": one, "carried": carried,
                    "limit": found(request, increase.limit_id)}  # fmt: skip
    title = f"More for {key}, for a while"
    question = "How much more, until when, and why?"
    return page.show(request, "increase.html", context, title=title, question=question,
                     tab="tenants")  # fmt: skip
