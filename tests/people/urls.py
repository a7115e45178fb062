from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path

from tests.people.models import Person
from token_allowance import allowance


def called(dimension: str, value: str) -> str | None:
    """LABELS: users by their address."""
    if dimension != "user":
        return None
    person: Person = Person.objects.get(pk=value)
    return person.email


def ask(request: HttpRequest) -> HttpResponse:
    call = allowance.call(
        provider="openai", model="gpt-5-mini", input_tokens=100, max_output_tokens=50
    )
    with call:
        call.record(allowance.Usage(100, 50))
    return HttpResponse("asked")


async def aask(request: HttpRequest) -> HttpResponse:
    call = allowance.call(
        provider="openai", model="gpt-5-mini", input_tokens=100, max_output_tokens=50
    )
    async with call:
        call.record(allowance.Usage(100, 50))
    return HttpResponse("asked")


urlpatterns = [path("admin/", admin.site.urls), path("ask", ask), path("aask", aask)]
