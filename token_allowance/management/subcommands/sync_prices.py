"""``sync-prices``: the bundled list prices as dated rows, added where they differ."""

from __future__ import annotations

import argparse
import time
from typing import Any

from django.core.management.base import CommandError, OutputWrapper
from django.utils import timezone

from token_allowance.prices import bundled, dated

HELP = "Add bundled model prices (package genai-prices); rows that exist are never changed."
SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="Show what would be added, add none."
    )
    parser.add_argument(
        "--provider",
        action="append",
        default=[],
        metavar="ID",
        help="Only this provider, as genai-prices names it, such as openai; may be repeated.",
    )
    parser.add_argument(
        *("-v", "--verbosity"),
        type=int,
        choices=range(4),
        default=argparse.SUPPRESS,  # what stands before the subcommand holds
        help="2 also says why prices were left out.",
    )


def run(out: OutputWrapper, options: dict[str, Any]) -> None:
    began = time.monotonic()
    only = options["provider"]
    out.write("Reading the bundled prices…")
    try:
        providers = bundled.load()
    except bundled.NotInstalled as error:
        raise CommandError(str(error)) from error
    known = sorted(provider.id for provider in providers)
    if unknown := sorted(set(only) - set(known)):
        raise CommandError(f"No provider {', '.join(unknown)}. There are: {', '.join(known)}.")
    bundle = bundled.read(providers, only)
    plan = dated.plan(bundle.prices, timezone.now(), only)
    if plan.rows and not options["dry_run"]:
        out.write(f"Adding {len(plan.rows):,} rows…")
        dated.write(plan.rows)
    _report(out, plan, bundle, listed=options["dry_run"], details=options["verbosity"] > 1)
    done = "Would add" if options["dry_run"] else "Added"
    out.write(f"{done} {len(plan.rows):,} price rows in {time.monotonic() - began:.1f} seconds.")


def _report(
    out: OutputWrapper, plan: dated.Plan, bundle: bundled.Bundle, *, listed: bool, details: bool
) -> None:
    """Changes and refusals are always listed, new prices only in a dry run."""
    for title, lines, shown in (
        ("New", plan.new, SHOWN if listed else 0),
        ("Changed", plan.changed, len(plan.changed)),
        ("Rejected", bundle.rejected, len(bundle.rejected)),
    ):
        out.write(f"{title}: {len(lines):,}")
        for line in lines[:shown]:
            out.write(f"  {line}")
        if 0 < shown < len(lines):
            out.write(f"  … and {len(lines) - shown:,} more")
    out.write(f"Same: {plan.same:,}")
    if details:
        for reason, count in sorted(bundle.skipped.items()):
            if count:
                out.write(f"Left out, {reason}: {count:,}")
    elif left_out := sum(bundle.skipped.values()):
        out.write(f"Left out: {left_out:,} (-v 2 says why)")
