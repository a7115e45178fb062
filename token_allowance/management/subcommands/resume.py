"""``resume``: release a kill switch, at once or for a part of the callers first."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import CommandError, OutputWrapper
from django.utils import timezone

from token_allowance.exceptions import StoreUnavailable
from token_allowance.management import targets, traffic
from token_allowance.management.durations import spoken
from token_allowance.management.subcommands.stop import percentage
from token_allowance.models import Switch
from token_allowance.stops import ALL_PERCENT
from token_allowance.switches import NAMES, Target, disengage, engage

HELP = "Let model calls through again that were stopped."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    targets.add_arguments(parser)
    parser.add_argument("--reason", default="", help="Why: it stays in the history.")
    parser.add_argument(
        "--percent",
        type=percentage,
        metavar="N",
        help="Let only this part of the callers through; the others stay stopped.",
    )


def run(out: OutputWrapper, options: dict[str, Any]) -> None:
    target = targets.chosen(options)
    found = targets.running()
    switch = found.filter(**dict(zip(NAMES, target.values, strict=True))).first()
    if switch is None:
        raise CommandError(missing(target, list(found)))
    lasted = spoken(timezone.now() - switch.engaged_at)
    stopped = 0 if options["percent"] is None else ALL_PERCENT - options["percent"]
    try:
        if stopped:
            narrow(switch, stopped, options)
        else:
            by = targets.person(options)
            disengage(**targets.named(options), by=by, reason=options["reason"])
    except StoreUnavailable as error:
        raise CommandError(
            f"Nothing was resumed, the database cannot be reached: {error}"
        ) from error
    if stopped:
        out.write(f"{targets.words(target)}: {stopped} % of the callers stay stopped.")
        out.write(f"To let all through: {targets.command('resume', target)}")
    else:
        out.write(f"Resumed {targets.words(target)}: it was stopped for {lasted}.")
        out.write(f"It had been stopped by {switch.by}: {switch.reason}")
    for note in traffic.ledger_notes():
        out.write(note)
    others = [other for other in found.all() if other.pk != switch.pk]
    for other in others:
        out.write(f"Still engaged: {targets.line(other)}")


def narrow(switch: Switch, percent: int, options: dict[str, Any]) -> None:
    """Engage it again for the rest of the callers; its end and what it does to streams stay."""
    left = None
    if switch.ends_at is not None:
        left = max(0.01, (switch.ends_at - timezone.now()).total_seconds() / 60)
    engage(
        **targets.named(options),
        reason=options["reason"] or switch.reason,
        by=targets.person(options),
        minutes=left,
        percent=percent,
        cut_streams=switch.cuts_streams,
    )


def missing(target: Target, found: list[Switch]) -> str:
    """What to say where no such switch is engaged: which are."""
    if not found:
        return "Nothing was resumed: no switch is engaged."
    lines = "".join(f"\n  {targets.command('resume', switch)}" for switch in found)
    return f"Nothing was resumed: {targets.words(target)} is not stopped. These are:{lines}"
