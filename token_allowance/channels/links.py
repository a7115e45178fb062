"""Links of a message: pages that only show or ask, because mail scanners follow every link."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.urls import NoReverseMatch, reverse

from token_allowance import conf
from token_allowance.models import Alert

ADMIN = "admin:token_allowance"
BOARD = "token_allowance_dashboard"
STOPPED = ("tenant", "user", "feature", "model")  # what a stop can name
HOUR = {"time": "hour"}


def of_alert(alert: Alert) -> dict[str, str]:
    """Links by what they are for: to the dashboard, or else the admin, whichever is there.

    None without LINK_BASE.
    """
    if not conf.current().LINK_BASE:
        return {}
    whose = {name: value for name in STOPPED if (value := getattr(alert, name))}
    limit = (alert.snapshot or {}).get("limit")
    found = {
        "stop": _page(f"{BOARD}:switch_stop", query=whose) or _page(f"{ADMIN}_switch_changelist"),
        "limit": limit
        and (_page(f"{BOARD}:limit", limit) or _page(f"{ADMIN}_limit_change", limit)),
        "look": _page(f"{BOARD}:now", query=whose)
        or _page(f"{ADMIN}_reservation_changelist", query=HOUR),
        "alert": _page(f"{BOARD}:alert", alert.pk) or _page(f"{ADMIN}_alert_change", alert.pk),
        "rule": _page(f"{ADMIN}_alertrule_change", alert.rule_id) or _page(f"{BOARD}:alert_rules"),
    }
    return {name: url for name, url in found.items() if url}


def _page(name: str, *args: Any, query: dict[str, str] | None = None) -> str:
    try:
        path = reverse(name, args=args)
    except NoReverseMatch:
        return ""
    base = str(conf.current().LINK_BASE).rstrip("/")
    return base + path + (f"?{urlencode(query)}" if query else "")
