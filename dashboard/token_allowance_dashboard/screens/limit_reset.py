"""Taking off what one budget has used: by a correction that stays in the books (case C68)."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from token_allowance import adjustments, attempts
from token_allowance.admin import amounts
from token_allowance.limits import DIMENSIONS
from token_allowance.models import Limit
from token_allowance_dashboard import page
from token_allowance_dashboard.access import LIMITS, access, screen
from token_allowance_dashboard.rulebook import Rulebook, Standing
from token_allowance_dashboard.screens.limits import found


@require_http_methods(["GET", "HEAD", "POST"])
@attempts.noted("dashboard")
@screen(LIMITS)
def reset(request: HttpRequest, pk: int) -> HttpResponseBase:
    """The address names the values of the budget."""
    row, who = found(request, pk), access(request)
    standing = _standing(request, row)
    own = dict(standing.values)
    who.check(own.get("tenant", ""))
    errors: list[str] = []
    if request.method == "POST":
        reason = request.POST.get("reason", "").replace("\x00", "").strip()
        if reason:
            return _reset(request, row, own, reason)
        errors = ["Say why: it stays in the books."]
    context = {"limit": row, "standing": standing, "errors": errors}
    title = f"Take off what {standing.whose} has used?"
    question = "Its budget is full again, and a correction says who did it and why."
    return page.show(request, "limit_reset.html", context, title=title, question=question,
                     tab="limits")  # fmt: skip


def _standing(request: HttpRequest, row: Limit) -> Standing:
    """Http404 unless the address names exactly the values of a budget of this limit."""
    shape = [name for name in DIMENSIONS if getattr(row, name)]
    values = tuple((name, request.GET.get(name, "")) for name in shape)
    if not row.is_active or not all(value for _, value in values):
        raise Http404
    book = Rulebook(timezone.now())
    own = [budget for budget in book.opened([values]) if budget.limit.id == row.pk]
    if not own:
        raise Http404
    (standing,) = book.standings(own)
    return standing


def _reset(request: HttpRequest, row: Limit, own: dict[str, Any], reason: str) -> HttpResponseBase:
    by = request.user.get_username()
    made = adjustments.adjust(
        reset=True, limit=row.pk, reason=reason, by=by, everything=not own, **own
    )
    taken = sum(-one.amount for one in made)
    said = f"{amounts.text(taken, row.unit)} taken off. Calls in flight keep what they hold."
    messages.success(request, said, fail_silently=True)
    return redirect(page.address("limit", row.pk) or "/")
