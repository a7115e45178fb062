"""``jobs``: what has to happen now and then, done once."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import OutputWrapper
from django.utils import timezone

from token_allowance import conf, leases
from token_allowance.management.subcommands import drain

HELP = "Do the recurring work once: bring the ledger up to date, end leases that have run out."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(out: OutputWrapper, options: dict[str, Any]) -> None:
    if conf.store().behind_seconds() is not None:
        drain.once(out)
    expire(out)


def expire(out: OutputWrapper) -> None:
    total = leases.expire(timezone.now())
    charged = conf.current().ON_EXPIRE == "charge"
    what = "charged as reserved" if charged else "nothing charged"
    noun = "reservation" if total == 1 else "reservations"
    out.write(f"expire: {total:,} {noun} ended without word, {what}.")
