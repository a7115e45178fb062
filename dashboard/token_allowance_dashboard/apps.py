"""The dashboard as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class TokenAllowanceDashboardConfig(AppConfig):
    """Screens over token_allowance. It has no models: everything it shows belongs to that app."""

    name = "token_allowance_dashboard"
    label = "token_allowance_dashboard"
    verbose_name = "Token Allowance dashboard"
