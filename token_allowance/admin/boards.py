"""The way from a page of the admin to the dashboard's, where that is mounted."""

from __future__ import annotations

from typing import Any

from django.urls import NoReverseMatch, reverse

BOARD = "token_allowance_dashboard"


def address(name: str, *args: Any) -> str:
    """Empty if this project has no such page."""
    try:
        return reverse(f"{BOARD}:{name}", args=args)
    except NoReverseMatch:
        return ""
