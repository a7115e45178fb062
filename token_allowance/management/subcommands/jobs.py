"""``jobs``: what has to happen now and then, done once."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import OutputWrapper
from django.utils import timezone

from token_allowance import conf

HELP = "Do the recurring work once: end reservations whose lease has run out."
AT_ONCE = 500
MOST_ROUNDS = 200  # a run ends; what is left waits for the next one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(out: OutputWrapper, options: dict[str, Any]) -> None:
    expire(out)


def expire(out: OutputWrapper) -> None:
    charge = conf.current().ON_EXPIRE == "charge"
    total = 0
    for _ in range(MOST_ROUNDS):
        ended = conf.store().expire(timezone.now(), charge=charge, most=AT_ONCE)
        total += ended
        if ended < AT_ONCE:
            break
    what = "charged as reserved" if charge else "nothing charged"
    noun = "reservation" if total == 1 else "reservations"
    out.write(f"expire: {total:,} {noun} ended without word, {what}.")
