"""Views of the HTTP tests. None calls a model: they raise what a model call would raise."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Iterator

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import api_view, authentication_classes
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from token_allowance.attribution import charge_to, current
from token_allowance.exceptions import AllowanceError, AllowanceExceeded

MIDNIGHT = dt.datetime(2126, 11, 30, tzinfo=dt.UTC)
SPENT = {
    "code": "user_daily_budget_exceeded",
    "scope": "user",
    "window": "day",
    "unit": "cost",
    "amount": 500_000,
    "used": 400_000,
    "reserved": 80_000,
    "available": 20_000,
    "needed": 80_000,
    "retry_after_seconds": 41_520,
    "resets_at": MIDNIGHT,
}
raised: list[BaseException] = []  # what a view raises next
events: list[str] = []  # what a stream lived through
held: list[object] = []  # streams that the garbage collector must not end


def spent(**facts: object) -> AllowanceExceeded:
    return AllowanceExceeded("user daily budget exceeded: $0.40 of $0.50 is used", **SPENT | facts)


def who() -> dict[str, object]:
    charge = current()
    seen: dict[str, object] = dict(charge.attribution().as_dict())
    return seen | {"trace_id": charge.trace_id, "runs": [run.id for run in charge.runs]}


def refuse(request: HttpRequest) -> HttpResponse:
    raise raised.pop()


async def arefuse(request: HttpRequest) -> HttpResponse:
    raise raised.pop()


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("no model was called")


def whoami(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"first": who(), "second": who()})


async def awhoami(request: HttpRequest) -> HttpResponse:
    found = await current().aattribution()
    return JsonResponse(found.as_dict())


async def sync_client(request: HttpRequest) -> HttpResponse:
    """A synchronous SDK client in an async view asks on the loop's own thread."""
    return JsonResponse(who())


def capped(request: HttpRequest) -> HttpResponse:
    for _ in range(3):
        for run in current().runs:
            run.take(1_000)
    return HttpResponse("three calls")


def stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(steps(), content_type="text/plain")


def steps() -> Iterator[str]:
    try:
        yield f"{current().attribution().user};"
        with charge_to(feature="inner"):
            yield f"{current().attribution().feature};"
            yield f"{current().attribution().feature};"
        yield f"{current().attribution().user}{current().attribution().feature};"
        if raised:
            raise raised.pop()
    except AllowanceError as error:
        events.append(f"refused {error.code}")
        raise
    finally:
        events.append(f"closed {current().attribution().user}")


async def astream(request: HttpRequest) -> StreamingHttpResponse:
    body = asteps()
    held.append(body)
    return StreamingHttpResponse(body, content_type="text/plain")


async def asteps() -> AsyncIterator[str]:
    try:
        for number in range(3):
            await asyncio.sleep(0)
            found = await current().aattribution()
            yield f"{found.user}{number};"
        if raised:
            raise raised.pop()
    finally:
        events.append(f"closed {(await current().aattribution()).user}")


class HeaderToken(BaseAuthentication):
    """A bearer token that is the user's name: what TokenAuthentication does, without its table."""

    def authenticate(self, request: Request) -> tuple[object, str] | None:
        scheme, _, name = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer":
            return None
        return get_user_model().objects.get(username=name), name


class ApiWhoami(APIView):
    authentication_classes = [HeaderToken]
    permission_classes: list[type] = []

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        self.before = who()["user"]
        super().initial(request, *args, **kwargs)

    def get(self, request: Request) -> Response:
        return Response({"before": self.before, "user": who()["user"]})


@api_view(["GET", "POST"])
@authentication_classes([HeaderToken])
def api_refuse(request: Request) -> Response:
    raise raised.pop()


def strict(get_response):
    """Middleware: no script, no inline style, no image of another host."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response: HttpResponse = get_response(request)
        response["Content-Security-Policy"] = "default-src 'none'; style-src 'self'"
        return response

    return middleware


urlpatterns = [
    path("admin/", admin.site.urls),
    path("refuse/", refuse),
    path("arefuse/", arefuse),
    path("plain/", plain),
    path("whoami/", whoami),
    path("awhoami/", awhoami),
    path("sync-client/", sync_client),
    path("capped/", capped),
    path("stream/", stream),
    path("astream/", astream),
    path("api/whoami/", ApiWhoami.as_view()),
    path("api/refuse/", api_refuse),
]
