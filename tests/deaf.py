"""A mutation: an app whose processes never hear of a switch. A drill must find it out."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig


class Deaf(AppConfig):
    name = "tests.deaf"

    def ready(self) -> None:
        from token_allowance.policy import Policy

        def engaged(self: Policy, values: Any, now: Any) -> None:
            return None

        Policy.engaged = engaged  # type: ignore[method-assign]
