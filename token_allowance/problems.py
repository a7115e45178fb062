"""A refusal as a problem document (RFC 9457), and how to find one that an SDK has wrapped."""

from __future__ import annotations

import datetime as dt
import re
from collections import deque
from collections.abc import Iterator
from math import ceil
from typing import Any

from django.utils import timezone

from token_allowance import conf
from token_allowance.attribution import current
from token_allowance.exceptions import (
    AllowanceError,
    AllowanceExceeded,
    CapExceeded,
    SwitchEngaged,
    TooLarge,
    UnknownModel,
    UnmeteredEndpoint,
)
from token_allowance.limits import DIMENSIONS
from token_allowance.money import format_usd
from token_allowance.windows import Window

CONTENT_TYPE = "application/problem+json"
PAUSED = "Paused by the service"
MOST_LINKS = 200  # of a chain of exceptions
# Packages that wrap what their transport raises. Two are named in full: a host may well have a
# package of its own called ``agents``, and ``google`` is shared by many.
SDK_MODULES = (
    *("agents.exceptions", "anthropic", "boto3", "botocore", "cohere", "dspy", "google.genai"),
    *("groq", "httpcore", "httpcore2", "httpx", "httpx2", "instructor", "litellm", "llama_index"),
    *("mistralai", "ollama", "openai", "pydantic_ai", "pydantic_graph", "requests", "smolagents"),
    *("together", "urllib3"),
)
SDK_PREFIXES = ("langchain", "langgraph")  # langchain_openai, langchain_core and their like
SCOPE_WORDS = frozenset((*DIMENSIONS, "global", "request"))
# Their messages speak to the caller; those of the others speak to the people who run the service.
FOR_CALLERS = (AllowanceExceeded, UnknownModel, UnmeteredEndpoint)


def find_refusal(error: BaseException) -> AllowanceError | None:
    """The AllowanceError that this exception is, wraps, or holds in a group; None if there is none.

    It follows ``__cause__`` and groups, and ``__context__`` only from exceptions that known SDK
    packages define: a bug in the caller's own ``except`` block stays a bug.
    """
    waiting, seen = deque([error]), set[int]()
    while waiting and len(seen) < MOST_LINKS:
        one = waiting.popleft()
        if isinstance(one, AllowanceError):
            return one
        if id(one) not in seen:
            seen.add(id(one))
            waiting.extend(_behind(one))
    return None


def _behind(error: BaseException) -> Iterator[BaseException]:
    if error.__cause__ is not None:
        yield error.__cause__
    if isinstance(error, BaseExceptionGroup):
        yield from error.exceptions
    if error.__context__ is not None and _from_sdk(error):
        yield error.__context__


def _from_sdk(error: BaseException) -> bool:
    module = type(error).__module__
    known = any(module == name or module.startswith(f"{name}.") for name in SDK_MODULES)
    return known or module.startswith(SDK_PREFIXES)


def status(refusal: AllowanceError) -> int:
    """The HTTP status; an exceeded budget or cap answers with EXCEEDED_STATUS."""
    if isinstance(refusal, AllowanceExceeded) and not isinstance(refusal, TooLarge):
        return conf.current().EXCEEDED_STATUS
    return refusal.status


def problem(error: BaseException) -> dict[str, Any]:
    """The problem document of a refusal, also of a wrapped one; TypeError for other exceptions.

    ``limit available needed`` are text in dollars ("0.50") for ``cost``, else integers, and null
    where the budget is wider than the caller.
    """
    refusal = find_refusal(error)
    if refusal is None:
        raise TypeError(f"{type(error).__name__} is no refusal; ask find_refusal() first")
    own = not is_wider(refusal)
    unit = _text(refusal, "unit")
    return {
        "type": "urn:token-allowance:problem:" + re.sub(r"[^A-Za-z0-9_-]", "_", refusal.code),
        "title": refusal.title,
        "status": status(refusal),
        "code": refusal.code,
        "detail": detail(refusal),
        "scope": _scope(refusal),
        "window": _text(refusal, "window"),
        "unit": unit,
        "limit": _amount(refusal, "amount", unit) if own else None,
        "available": _amount(refusal, "available", unit) if own else None,
        "needed": _amount(refusal, "needed", unit) if own else None,
        "resets_at": _iso(resets_at(refusal)),
        "retryable": bool(refusal.retryable),
        "trace_id": _text(refusal, "trace_id") or current().trace_id or None,
    }


def headers(refusal: AllowanceError) -> dict[str, str]:
    """Headers for a problem document. SDKs in front of this service must not repeat the call."""
    found = {"x-should-retry": "false", "Cache-Control": "no-store"}
    seconds = retry_after_seconds(refusal)
    return found if seconds is None else {"Retry-After": str(seconds), **found}


def retry_after_seconds(refusal: AllowanceError) -> int | None:
    """Whole seconds, at least 1; None if waiting does not help or nobody knows how long."""
    if isinstance(refusal, CapExceeded | TooLarge):
        return None
    seconds = getattr(refusal, "retry_after_seconds", None)
    if seconds is None and (again := resets_at(refusal)) is not None:
        seconds = (again - timezone.now()).total_seconds()
    return None if seconds is None else max(1, ceil(seconds))


def resets_at(refusal: AllowanceError) -> dt.datetime | None:
    """When there is room again, or the switch ends; aware, in UTC."""
    moment = getattr(refusal, "resets_at", None) or getattr(refusal, "ends_at", None)
    if not isinstance(moment, dt.datetime):
        return None
    return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)


def is_wider(refusal: AllowanceError) -> bool:
    """Is what blocks wider than the caller, so that its amounts are not for the caller's eyes?"""
    return isinstance(refusal, SwitchEngaged) or bool(getattr(refusal, "shared", False))


def detail(refusal: AllowanceError) -> str:
    """One or two sentences for the caller."""
    if isinstance(refusal, SwitchEngaged):
        return PAUSED
    if not isinstance(refusal, FOR_CALLERS):
        return refusal.title
    said = str(refusal)
    if is_wider(refusal) or said in ("", refusal.title):
        return _named(refusal) or (PAUSED if is_wider(refusal) else refusal.title)
    return said


def _named(refusal: AllowanceError) -> str:
    """ "user daily budget exceeded", without numbers."""
    scope, window = _scope(refusal), _text(refusal, "window")
    if not scope or not window:
        return ""
    known = window in Window.__members__.values()
    adjective = Window(window).adjective if known else window
    limit = getattr(refusal, "limit", None)  # knows how long a rolling window is
    return f"{scope} {getattr(limit, 'adjective', adjective)} budget exceeded"


def _scope(refusal: AllowanceError) -> str | None:
    """Names of dimensions only: a value here could be another tenant's."""
    scope = _text(refusal, "scope")
    return scope if scope and SCOPE_WORDS.issuperset(scope.split()) else None


def _text(refusal: AllowanceError, name: str) -> str | None:
    value = getattr(refusal, name, None)
    return str(value) if value else None


def _amount(refusal: AllowanceError, name: str, unit: str | None) -> str | int | None:
    value = getattr(refusal, name, None)
    if not isinstance(value, int):
        return None
    return format_usd(value).replace("$", "").replace(",", "") if unit == "cost" else value


def _iso(moment: dt.datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
