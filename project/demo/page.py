"""The one page, as a whole or streamed while a model is still writing its answer."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.template.loader import render_to_string
from django.utils.html import escape

from project.demo import agent, clients, figures, forms, offers, people, seed
from project.demo.people import Person

TEMPLATE = "demo/page.html"
POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)

View = Callable[..., HttpResponseBase]


def strict(view: View) -> View:
    """Answer with a policy that allows no script at all: the page has none."""

    @wraps(view)
    def answered(request: HttpRequest) -> HttpResponseBase:
        response = view(request)
        response["Content-Security-Policy"] = POLICY
        response["Cache-Control"] = "no-store"
        return response

    return answered


def wants_json(request: HttpRequest) -> bool:
    return request.get_preferred_type(["text/html", "application/json"]) == "application/json"


def render(request: HttpRequest, person: Person, **shown: Any) -> str:
    """``shown`` is what has just happened: a question with its answer, a walk, a race, a fault."""
    found = offers.offers()
    context = {
        "people": people.PEOPLE,
        "tenants": people.TENANTS,
        "person": person,
        "offers": found,
        "agent_offers": offers.agent_offers(),
        "any_real": any(offer.real for offer in found),
        "max_calls": agent.MAX_CALLS,
        "question": forms.QUESTION,
        "meters": figures.meters(person),
        "rows": figures.lines(),
        "staff": seed.STAFF,
        **shown,
    }
    return render_to_string(TEMPLATE, context, request)


def whole(request: HttpRequest, person: Person, *, status: int = 200, **shown: Any) -> HttpResponse:
    return HttpResponse(render(request, person, **shown), status=status)


def streamed(
    request: HttpRequest, person: Person, pieces: Generator[str], **shown: Any
) -> StreamingHttpResponse:
    """The page up to the answer, the answer as it comes, then the figures that it has changed."""
    marker = secrets.token_hex(16)
    before = render(request, person, answer=marker, **shown).partition(marker)[0]

    def parts() -> Iterator[str]:
        with closing(pieces):
            yield before
            try:
                for piece in pieces:
                    yield escape(piece)
            except clients.errors() as error:
                yield escape(f" … {clients.told(error)}")
        yield render(request, person, answer=marker, **shown).partition(marker)[2]

    return StreamingHttpResponse(parts())
