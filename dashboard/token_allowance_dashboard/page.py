"""What every page has: the tabs, the mode, what is stopped, how old the figures are."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse
from django.utils import timezone

from token_allowance import conf, policy
from token_allowance.exceptions import StoreUnavailable
from token_allowance.labels import Labels
from token_allowance_dashboard import access, spending

APP = "token_allowance_dashboard"
STALE = dt.timedelta(minutes=5)
TABS = (
    ("overview", "Overview"),
    ("now", "Spending now"),
    ("spend", "Spend"),
    ("tenants", "Tenants"),
    ("limits", "Limits"),
    ("switches", "Switches"),
    ("alerts", "Alerts"),
    ("ledger", "Ledger"),
    ("health", "Health"),
)


@dataclass(frozen=True, slots=True)
class Tab:
    name: str
    text: str
    url: str
    current: bool


def show(
    request: HttpRequest,
    template: str,
    context: dict[str, Any],
    *,
    title: str,
    question: str = "",
    tab: str = "",
    status: int = 200,
) -> HttpResponse:
    """A page in the shell. ``question`` is the one that the screen answers."""
    now = timezone.now()
    whole = {
        **_admin(request),
        **_state(request, now),
        "title": title,
        "question": question,
        "tabs": _tabs(tab),
        "now": now,
        "labels": Labels(),
        "htmx": apps.is_installed("django_htmx"),
        "access": access.access(request),
        **context,
    }
    return render(request, f"{APP}/{template}", whole, status=status)


def _tabs(current: str) -> list[Tab]:
    return [
        Tab(name, text, url, name == current)
        for name, text in TABS
        if (url := address(name)) is not None
    ]


def address(name: str, *args: Any) -> str | None:
    """The address of one of our pages; None if it is not in this project's URLs."""
    try:
        return reverse(f"{APP}:{name}", args=args)
    except NoReverseMatch:
        return None


def _admin(request: HttpRequest) -> dict[str, Any]:
    """The admin's own context, so that the pages look at home in it; without it, our own shell."""
    base = conf.current().BASE_TEMPLATE
    if base is None and apps.is_installed("django.contrib.admin"):
        from django.contrib import admin

        try:
            context = admin.site.each_context(request)
        except NoReverseMatch:  # installed, and not in the URLs
            return {"shell": f"{APP}/shell.html", "admin": False}
        shell = "admin/base_site.html"
        return {**context, "is_nav_sidebar_enabled": False, "shell": shell, "admin": True}
    return {"shell": base or f"{APP}/shell.html", "admin": False}


def _state(request: HttpRequest, now: dt.datetime) -> dict[str, Any]:
    settings = conf.current()
    found: dict[str, Any] = {
        "mode": settings.MODE,
        "environment": settings.ENVIRONMENT,
        "engaged": 0,
        "edge": None,
        "store_down": False,
    }
    try:
        switches = policy.confirmed().switches
        seen = [s for s in switches if access.access(request).sees(dict(s.named).get("tenant", ""))]
        found["engaged"] = sum(1 for one in seen if one.ends_at is None or one.ends_at > now)
        found["edge"] = edge = spending.edge(now)
        found["stale"] = edge.as_of is None or now - edge.as_of > STALE
    except StoreUnavailable:
        found["store_down"] = True
    return found
