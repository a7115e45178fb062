"""The middleware: attribution and caps for a request's model calls, answers for refused ones."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from token_allowance.attribution import Charge, entered
from token_allowance.bodies import charged
from token_allowance.problems import find_refusal
from token_allowance.requests import charge_of, check_proxies
from token_allowance.responses import is_answer, refused

logger = logging.getLogger("token_allowance")


class AllowanceMiddleware:
    """Put it last. It makes no query unless a model call is made, and changes no other answer."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        check_proxies()
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        charge = charge_of(request)
        if self.is_async:
            return self._acall(request, charge)
        with entered(charge):
            response: HttpResponseBase = self.get_response(request)
        return charged(response, charge)

    async def _acall(self, request: HttpRequest, charge: Charge) -> HttpResponseBase:
        with entered(charge):
            response: HttpResponseBase = await self.get_response(request)
        return charged(response, charge)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Answer a refusal. Anything else, and a refusal that is the caller's bug, stays raised."""
        refusal = find_refusal(exception)
        if refusal is None or not is_answer(refusal):
            return None
        _log_others(request, exception)
        return refused(request, refusal)


def _log_others(request: HttpRequest, exception: Exception) -> None:
    """What failed beside a refusal in the same group is no answer, but must not vanish."""
    if not isinstance(exception, ExceptionGroup):
        return
    others = exception.subgroup(
        lambda one: not isinstance(one, BaseExceptionGroup) and find_refusal(one) is None
    )
    if others is not None:
        logger.error(
            "A model call was refused at %s, and other errors came with it",
            request.path,
            exc_info=others,
            extra={"request": request},
        )
