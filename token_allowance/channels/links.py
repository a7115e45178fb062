"""Links of a message: pages that only show or ask, because mail scanners follow every link."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.urls import NoReverseMatch, reverse

from token_allowance import conf
from token_allowance.models import Alert

ADMIN = "admin:token_allowance"
BOARD = "token_allowance_dashboard"


def of_alert(alert: Alert) -> dict[str, str]:
    """Links by what they are for; none without LINK_BASE, and none to pages that are not there."""
    if not conf.current().LINK_BASE:
        return {}
    limit = (alert.snapshot or {}).get("limit")
    whose = {name: v for name in ("tenant", "feature") if (v := getattr(alert, name))}
    found = {
        "stop": _page(f"{ADMIN}_switch_changelist"),
        "limit": _page(f"{ADMIN}_limit_change", limit) if limit else "",
        "look": _page(f"{BOARD}:now", query=whose)
        or _page(f"{ADMIN}_reservation_changelist", query={"time": "hour"}),
        "alert": _page(f"{ADMIN}_alert_change", alert.pk),
        "rule": _page(f"{ADMIN}_alertrule_change", alert.rule_id),
    }
    return {name: url for name, url in found.items() if url}


def _page(name: str, *args: Any, query: dict[str, str] | None = None) -> str:
    try:
        path = reverse(name, args=args)
    except NoReverseMatch:
        return ""
    base = str(conf.current().LINK_BASE).rstrip("/")
    return base + path + (f"?{urlencode(query)}" if query else "")
