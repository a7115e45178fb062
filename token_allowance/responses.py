"""The HTTP answer to a refused model call: a problem document, or a page for people."""

from __future__ import annotations

import datetime as dt
from math import ceil
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.utils import dateformat, timezone
from django.utils.cache import patch_vary_headers
from django.utils.log import log_response

from token_allowance import problems
from token_allowance.attribution import current
from token_allowance.exceptions import (
    AllowanceError,
    AllowanceExceeded,
    CapExceeded,
    StoreUnavailable,
    SwitchEngaged,
    TooLarge,
    UnknownModel,
)
from token_allowance.money import format_usd

TEMPLATE = "token_allowance/refused.html"
HTML = ("text/html", "application/xhtml+xml")
JSON = (problems.CONTENT_TYPE, "application/json")
PERIODS = {
    "minute": "this minute’s",
    "hour": "this hour’s",
    "day": "today’s",
    "week": "this week’s",
    "month": "this month’s",
    "total": "the whole",
}


def is_answer(refusal: AllowanceError) -> bool:
    """Does the client get an answer? A bug in the caller (500) stays an exception instead."""
    return refusal.status != 500


def refused(request: HttpRequest, refusal: AllowanceError) -> HttpResponse:
    """The answer in the form that the ``Accept`` header asks for."""
    response = page(request, refusal) if wants_page(request) else None
    if response is None:
        response = JsonResponse(
            problems.problem(refusal),
            status=problems.status(refusal),
            content_type=problems.CONTENT_TYPE,
        )
    return finished(response, request, refusal)


def finished(
    response: HttpResponse, request: HttpRequest | None, refusal: AllowanceError
) -> HttpResponse:
    """Set the headers, and log a switch as what it is: Django mails a 503 to the admins."""
    for name, value in problems.headers(refusal).items():
        response[name] = value
    patch_vary_headers(response, ["Accept"])
    if isinstance(refusal, SwitchEngaged):
        path = request.path if request is not None else ""
        said = ("%s: %s", refusal.title, path)
        log_response(*said, response=response, request=request, level="warning")
    return response


def wants_page(request: HttpRequest) -> bool:
    """Does ``Accept`` name HTML itself, and prefer it to JSON? ``*/*`` asks for JSON."""
    html = json = anything = 0.0
    for accepted in request.accepted_types:
        name = f"{accepted.main_type}/{accepted.sub_type}".lower()
        if name in HTML:
            html = max(html, accepted.quality)
        elif name in JSON:
            json = max(json, accepted.quality)
        elif name in ("*/*", "application/*"):
            anything = max(anything, accepted.quality)
    return html > json and html >= anything


def page(request: HttpRequest, refusal: AllowanceError) -> HttpResponse | None:
    """The page for people; None in a project whose templates cannot find it."""
    again = None if isinstance(refusal, CapExceeded | TooLarge) else problems.resets_at(refusal)
    local = None if again is None else timezone.localtime(again)
    context = {
        "heading": heading(refusal),
        "explanation": explanation(refusal),
        "figures": "" if problems.is_wider(refusal) else figures(refusal),
        "again_at": again,
        "again": "" if local is None else dateformat.format(local, "j F Y, H:i T"),
        "again_in": "" if again is None else duration(again - timezone.now()),
        "uncharged": not _charged_before(refusal),
        "problem": problems.problem(refusal),
    }
    try:
        content = render_to_string(TEMPLATE, context, request)
    except TemplateDoesNotExist:
        return None
    return HttpResponse(content, status=problems.status(refusal))


def heading(refusal: AllowanceError) -> str:
    if problems.is_wider(refusal):
        return "AI answers are paused for now"
    if isinstance(refusal, TooLarge):
        return "This request is too large for your AI allowance"
    if isinstance(refusal, CapExceeded):
        return "This request took more steps than it may"
    if not isinstance(refusal, AllowanceExceeded):
        known = isinstance(refusal, UnknownModel)
        return "This AI model cannot be used here" if known else "AI answers are not available now"
    if refusal.reason == "held":
        return "Other AI answers are still being written"
    scope = refusal.scope.split()
    who = "Your organisation has" if "tenant" in scope and "user" not in scope else "You have"
    narrowed = next((name for name in ("feature", "model") if name in scope), "")
    period = PERIODS.get(refusal.window, "your")
    return f"{who} used {period} AI allowance" + (f" for this {narrowed}" if narrowed else "")


def explanation(refusal: AllowanceError) -> str:
    if problems.is_wider(refusal):
        return "Paused by the service, not because of anything you did."
    if isinstance(refusal, TooLarge):
        return "It needs more than the whole allowance. Ask for a shorter answer, or send less."
    if isinstance(refusal, CapExceeded):
        return "It was stopped so that one request cannot use up everything. Ask for less at once."
    if isinstance(refusal, StoreUnavailable):
        return "The service cannot check your allowance at the moment. Please try again soon."
    if isinstance(refusal, AllowanceExceeded) and refusal.reason == "held":
        return "They hold what is left of the allowance. Try again when they have finished."
    return ""


def figures(refusal: AllowanceError) -> str:
    """ "$0.40 of $0.50 is used and $0.08 is held …"; empty if the refusal does not say."""
    if not isinstance(refusal, AllowanceExceeded) or refusal.amount is None:
        return ""
    amount, used, held, needed = (
        refusal.amount,
        refusal.used or 0,
        refusal.reserved or 0,
        refusal.needed,
    )
    unit = refusal.unit
    said = f"{_quantity(used, unit)} of {_quantity(amount, unit)} {_noun(unit)}used"
    if held:
        said += f" and {_quantity(held, unit)} held by answers still being written"
    return f"{said}." + (
        f" This one may need {_quantity(needed, unit)}." if needed and unit != "calls" else ""
    )


def duration(left: dt.timedelta) -> str:
    """ "3 d 4 h", "11 h 32 min", rounded up to the minute, in one piece (no-break spaces)."""
    minutes = max(1, ceil(left.total_seconds() / 60))
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"))
    return "\xa0".join([f"{number}\xa0{unit}" for number, unit in parts if number][:2])


def _quantity(number: int, unit: str) -> str:
    return format_usd(number) if unit == "cost" else f"{number:,}"


def _noun(unit: Any) -> str:
    return {"tokens": "tokens ", "calls": "model calls "}.get(str(unit), "")


def _charged_before(refusal: AllowanceError) -> bool:
    """Were earlier calls of this request made? Then it was charged, though not for this one."""
    return isinstance(refusal, CapExceeded) or any(run.calls for run in current().runs)
