"""``stop``: engage a kill switch."""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from typing import Any

from django.core.management.base import CommandError, OutputWrapper
from django.utils import timezone

from token_allowance.exceptions import StoreUnavailable
from token_allowance.management import targets, traffic
from token_allowance.management.durations import duration, spoken
from token_allowance.stops import ALL_PERCENT
from token_allowance.switches import Target, engage

HELP = "Stop model calls: from now on they are refused in every process."
ALL_WORDS = "stop everything"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    targets.add_arguments(parser)
    parser.add_argument("--reason", required=True, help="Why: it stays in the history.")
    parser.add_argument(
        "--for",
        dest="length",
        type=duration,
        metavar="LENGTH",
        help="End it after 30m, 2h or 1h30m; until somebody resumes it if left out.",
    )
    parser.add_argument(
        "--cut-streams",
        action="store_true",
        help="Answers that are being streamed are cut off too; else they finish.",
    )
    parser.add_argument(
        "--percent",
        type=percentage,
        default=ALL_PERCENT,
        metavar="N",
        help="Only this part of the callers, always the same ones.",
    )
    parser.add_argument("--yes", action="store_true", help="Do not ask before --everything.")


def run(out: OutputWrapper, options: dict[str, Any]) -> None:
    target = targets.chosen(options)
    if options["everything"] and not options["yes"]:
        confirm(out)
    length: dt.timedelta | None = options["length"]
    stop(
        target,
        options,
        minutes=None if length is None else length.total_seconds() / 60,
        percent=options["percent"],
        cut_streams=options["cut_streams"],
    )
    report(out, target, options)


def stop(target: Target, options: dict[str, Any], **how: Any) -> None:
    """Engage, or CommandError that says in the first words that nothing was stopped."""
    try:
        engage(
            **targets.named(options), reason=options["reason"], by=targets.person(options), **how
        )
    except ValueError as error:
        raise CommandError(f"Nothing was stopped: {error}") from error
    except StoreUnavailable as error:
        raise CommandError(
            f"Nothing was stopped, the database cannot be reached: {error} Stop the processes "
            "that make the calls, or take the provider's keys away."
        ) from error


def report(out: OutputWrapper, target: Target, options: dict[str, Any]) -> None:
    now, length, percent = timezone.now(), options["length"], options["percent"]
    until = "until somebody resumes it"
    if length is not None:
        until = f"for {spoken(length)}, to {now + length:%Y-%m-%d %H:%M:%S %Z}"
    part = f" {percent} % of the callers of" if percent < ALL_PERCENT else ""
    out.write(f"Stopped{part} {targets.words(target)} at {now:%H:%M:%S %Z}, {until}.")
    out.write("New calls are refused in every process: 503, switch_engaged, not retried by SDKs.")
    end = "streams are cut within about a second and charged for what came, other calls finish"
    if not options["cut_streams"]:
        end = "they finish and are charged"
    found = traffic.in_flight(target, percent)
    out.write(f"In flight: {found.said}{f'; {end}' if found.calls else ''}.")
    for note in (*traffic.ledger_notes(), *traffic.doubts(target)):
        out.write(note)
    out.write(f"To undo it: {targets.command('resume', target)}")


def confirm(out: OutputWrapper) -> None:
    """Ask somebody who sits there; a script has said --everything."""
    if not sys.stdin.isatty():
        return
    out.write("This refuses every new model call of every tenant.")
    out.flush()
    if input(f"Type '{ALL_WORDS}' to go on: ").strip().lower() != ALL_WORDS:
        raise CommandError("Nothing was stopped.")


def percentage(text: str) -> int:
    number = text.removesuffix("%").strip()
    if not number.isdecimal() or not 1 <= int(number) <= ALL_PERCENT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 100")
    return int(number)
