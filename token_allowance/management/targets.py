"""Which calls ``stop`` and ``resume`` are about: as arguments, in words, and as a command."""

from __future__ import annotations

import argparse
import getpass
import os
import shlex
import socket
from typing import Any

from django.core.management.base import CommandError
from django.db.models import Q, QuerySet
from django.utils import timezone

from token_allowance.management.durations import spoken
from token_allowance.models import Switch
from token_allowance.switches import NAMES, Target, target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name in NAMES:
        parser.add_argument(f"--{name}", metavar="KEY", help=f"Calls of this {name}.")
    parser.add_argument("--everything", action="store_true", help="Instead: every model call.")
    parser.add_argument("--by", help="Who decides it; the name of the system's user if left out.")


def chosen(options: dict[str, Any]) -> Target:
    """Raises CommandError if the options name no calls, or some and everything."""
    try:
        return target(None, options["everything"], {name: options[name] for name in NAMES})
    except ValueError as error:
        flags = " ".join(f"--{name} KEY" for name in NAMES)
        named = any(options[name] for name in NAMES) and not options["everything"]
        words = str(error) if named else "say which calls"
        raise CommandError(f"{words}: {flags}, any of them together, or --everything.") from error


def named(options: dict[str, Any]) -> dict[str, Any]:
    """The same as keywords of ``engage`` and ``disengage``."""
    values = {name: options[name] for name in NAMES}
    return {**values, "everything": options["everything"], "source": "command"}


def person(options: dict[str, Any]) -> str:
    if options["by"]:
        return str(options["by"])
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"user {os.getuid()} of {socket.gethostname()}"


def words(of: Target | Switch) -> str:
    """``feature agent, tenant 7``; what is not named is not looked at."""
    values = ((name, getattr(of, name)) for name in NAMES)
    return ", ".join(f"{name} {value}" for name, value in values if value) or "everything"


def command(verb: str, of: Target | Switch, *more: str) -> str:
    """What to type to do this to the same calls."""
    pairs = [(f"--{name}", getattr(of, name)) for name in NAMES]
    flags = [word for flag, value in pairs if value for word in (flag, value)] or ["--everything"]
    return shlex.join(["python", "manage.py", "allowance", verb, *flags, *more])


def running() -> QuerySet[Switch]:
    """The switches that stop calls now."""
    return Switch.objects.filter(
        Q(ends_at=None) | Q(ends_at__gt=timezone.now()), released_at=None
    ).order_by("engaged_at", "id")


def line(switch: Switch) -> str:
    """One engaged switch: what it stops, since when, by whom, until when, and why."""
    now = timezone.now()
    until = "until somebody resumes it"
    if switch.ends_at is not None:
        until = f"for another {spoken(switch.ends_at - now)}"
    part = f" ({switch.percent} % of the callers)" if switch.percent < 100 else ""
    cuts = ", streams are cut" if switch.cuts_streams else ""
    since = f"{switch.engaged_at:%Y-%m-%d %H:%M %Z}, {spoken(now - switch.engaged_at)} ago"
    return f"{words(switch)}{part}: by {switch.by} since {since}, {until}{cuts}: {switch.reason}"
