"""``groups``: the groups of people who work with budgets, with what each may do."""

from __future__ import annotations

import argparse
from typing import Any

from django.apps import apps
from django.core.management.base import CommandError, OutputWrapper

HELP = "Make, or complete, the groups Allowance viewer, operator, finance and owner."
APP = "token_allowance"
VIEWER = ("view_dashboard", "view_limit", "view_switch", "view_alert", "view_tenant")
OPERATOR = (*VIEWER, "view_reservation", "flip_switch", "acknowledge_alert", "add_limitincrease",
            "view_limitincrease")  # fmt: skip
FINANCE = (*VIEWER, "view_reservation", "export_spend", "view_hourlyspend", "view_price",
           "add_price")  # fmt: skip
GROUPS: dict[str, tuple[str, ...] | None] = {
    "Allowance viewer": VIEWER,
    "Allowance operator": OPERATOR,
    "Allowance finance": FINANCE,
    "Allowance owner": None,  # everything
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(out: OutputWrapper, options: dict[str, Any]) -> None:
    """Adds what is missing; what was given besides is left as it is."""
    if not apps.is_installed("django.contrib.auth"):
        raise CommandError("Groups need django.contrib.auth in INSTALLED_APPS.")
    from django.contrib.auth.models import Group, Permission

    known = Permission.objects.filter(content_type__app_label=APP)
    for name, codenames in GROUPS.items():
        group, made = Group.objects.get_or_create(name=name)
        wanted = known if codenames is None else known.filter(codename__in=codenames)
        missing = wanted.exclude(pk__in=group.permissions.values("pk"))
        count = missing.count()
        group.permissions.add(*missing)
        word = "made" if made else "is there"
        out.write(f"{name}: {word}, {count} permission{'' if count == 1 else 's'} added")
