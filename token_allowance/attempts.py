"""Attempts to change a limit that were refused: each is written into its history (case C91)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase
from django.urls import get_resolver

from token_allowance.models import Limit, LimitRevision

WRITES = frozenset(("POST", "PUT", "PATCH", "DELETE"))
View = Callable[..., HttpResponseBase]


def noted(source: str) -> Callable[[View], View]:
    """Decorate a view that writes the limit ``pk``, or a new one without it.

    What it refuses with PermissionDenied is answered here: an exception that went on would take
    the row back where each request is one transaction.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def watched(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            own = partial(view, request, *args, **kwargs)
            return answered(request, source, kwargs.get("pk"), own)

        return watched

    return decorate


def answered(
    request: HttpRequest, source: str, pk: Any, view: Callable[[], HttpResponseBase]
) -> HttpResponseBase:
    """What the view answers; a refusal of somebody who is signed in is noted."""
    answer: HttpResponseBase
    try:
        answer = view()
    except PermissionDenied as error:
        handler: Any = get_resolver().resolve_error_handler(403)
        answer = handler(request, exception=error)
    if answer.status_code == 403 and request.method in WRITES and request.user.is_authenticated:
        _note(source, pk, request.user.get_username())
    return answer


def _note(source: str, pk: Any, by: str) -> None:
    limit = None if pk is None else Limit.objects.filter(pk=pk).first()
    if limit is not None or pk is None:
        LimitRevision.note_refusal(limit, by=by, source=source)
