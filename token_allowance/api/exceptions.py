"""Refusals as answers of Django REST framework."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from rest_framework import views
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response

from token_allowance import problems, responses


class ProblemRenderer(JSONRenderer):
    """A problem document keeps its own media type, whatever the view renders."""

    media_type = problems.CONTENT_TYPE
    format = "problem"


def exception_handler(exc: Exception, context: dict[str, Any]) -> HttpResponse | None:
    """REST_FRAMEWORK["EXCEPTION_HANDLER"]: answers refusals, leaves the rest to DRF's own handler.

    A wrapper can go on from here: it returns DRF's Response, or a page if ``Accept`` prefers HTML.
    """
    refusal = problems.find_refusal(exc)
    if refusal is None or not responses.is_answer(refusal):
        return views.exception_handler(exc, context)
    views.set_rollback()
    request = context.get("request")
    plain = getattr(request, "_request", None)
    if plain is not None and responses.wants_page(plain):
        return responses.refused(plain, refusal)
    if request is not None:
        request.accepted_renderer = ProblemRenderer()
        request.accepted_media_type = ProblemRenderer.media_type
    response = Response(
        problems.problem(refusal),
        status=problems.status(refusal),
        content_type=problems.CONTENT_TYPE,
    )
    return responses.finished(response, plain, refusal)
