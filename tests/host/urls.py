from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path

from token_allowance import allowance

MODEL: dict[str, Any] = {"provider": "openai", "model": "gpt-5-mini", "input_tokens": 100}


def who_pays(request: HttpRequest) -> dict[str, str]:
    return {"tenant": request.GET["tenant"]}


def ask(request: HttpRequest) -> HttpResponse:
    with allowance.call(**MODEL, max_output_tokens=100) as call:
        call.record(allowance.Usage(input_tokens=100, output_tokens=50))
    return HttpResponse("asked")


async def aask(request: HttpRequest) -> HttpResponse:
    async with allowance.call(**MODEL, max_output_tokens=100) as call:
        call.record(allowance.Usage(input_tokens=100, output_tokens=50))
    return HttpResponse("asked")


urlpatterns = [path("ask", ask), path("aask", aask)]
