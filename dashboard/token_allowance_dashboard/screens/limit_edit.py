"""Writing a limit: a form, then what it would do, then it is saved."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from token_allowance import attempts
from token_allowance.models import Limit, LimitRevision
from token_allowance.models.revisions import written
from token_allowance_dashboard import limit_draft, page
from token_allowance_dashboard.access import ADD_LIMIT, LIMITS, access, screen
from token_allowance_dashboard.limit_draft import DraftForm
from token_allowance_dashboard.screens.limits import found, may_touch

SOURCE = "dashboard"
NOT_CARRIED = ("csrfmiddlewaretoken", "step")
SAVED = "Saved: every process obeys it from its next call on. What was spent in this window stays."
TWICE = "An active limit with this scope, window and unit exists."


@require_http_methods(["GET", "HEAD", "POST"])
@attempts.noted(SOURCE)
@screen(ADD_LIMIT)
def new(request: HttpRequest) -> HttpResponseBase:
    return _written(request, None)


@require_http_methods(["GET", "HEAD", "POST"])
@attempts.noted(SOURCE)
@screen(LIMITS)
def edit(request: HttpRequest, pk: int) -> HttpResponseBase:
    row = found(request, pk)
    if not may_touch(access(request), row):
        raise PermissionDenied("You look after some tenants: this limit is not theirs alone.")
    return _written(request, row)


def _written(request: HttpRequest, row: Limit | None) -> HttpResponseBase:
    who, now = access(request), timezone.now()
    instance = None if row is None else Limit.objects.get(pk=row.pk)
    if request.method != "POST":
        given = limit_draft.initial(request.GET, who, now) if row is None else {}
        return _form(request, DraftForm(instance=instance, initial=given, who=who), row)
    form = DraftForm(request.POST, instance=instance, who=who)
    step = request.POST.get("step")
    if not form.is_valid() or step not in ("preview", "save"):
        return _form(request, form, row)
    if step == "save":
        return _save(request, form, row)
    context = {
        "limit": form.instance,
        "was": row,
        "preview": limit_draft.preview(form.instance, row, who, now),
        "reason": form.cleaned_data["reason"],
        "carried": [(n, v) for n, values in request.POST.lists() if n not in NOT_CARRIED
                    for v in values],
    }  # fmt: skip
    title = "Save this limit?" if row is None else "Save this change?"
    question = "What would it have done, and what does it do at once?"
    return page.show(request, "limit_preview.html", context, title=title, question=question,
                     tab="limits")  # fmt: skip


def _form(request: HttpRequest, form: DraftForm, row: Limit | None) -> HttpResponseBase:
    context: dict[str, Any] = {"form": form, "limit": row, "parts": _parts(form)}
    title = "New limit" if row is None else f"Change the limit of {row.scope_text}"
    question = "Next you see what it would have done in the last 30 days."
    return page.show(request, "limit_form.html", context, title=title, question=question,
                     tab="limits")  # fmt: skip


def _parts(form: DraftForm) -> list[tuple[str, list[Any]]]:
    named = {
        "Whose budget": ("tenant", "user", "session", "feature", "model", "plan"),
        "How much": ("amount", "unit"),
        "How long": ("window", "rolling_seconds", "anchor_day", "time_zone"),
        "At which part of it": ("notify_at", "degrade_at", "hard_stop_percent"),
        "In force": ("mode", "is_active", "expires_at"),
        "Why": ("reason",),
    }
    return [(title, [form[name] for name in names]) for title, names in named.items()]


def _save(request: HttpRequest, form: DraftForm, row: Limit | None) -> HttpResponseBase:
    by = request.user.get_username()
    try:
        with transaction.atomic():
            before = {} if row is None else written(Limit.objects.get(pk=row.pk))
            saved = form.save()
            LimitRevision.note(
                saved, before, by=by, source=SOURCE, reason=form.cleaned_data["reason"]
            )
    except IntegrityError:  # somebody was faster
        form.add_error(None, TWICE)
        return _form(request, form, row)
    messages.success(request, SAVED, fail_silently=True)
    return redirect(page.address("limit", saved.pk) or "/")
