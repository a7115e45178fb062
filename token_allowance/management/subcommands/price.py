"""``price``: which price matches this model?"""

from __future__ import annotations

import argparse
import datetime as dt
import difflib
from typing import Any

from django.core.management.base import CommandError, OutputWrapper
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from token_allowance.models import ModelAlias, Price
from token_allowance.prices.matching import Match, matches
from token_allowance.pricing import RATES, ModelPrice

HELP = "Show which price a call of this model would have, and which names were tried."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="The name as calls give it.")
    parser.add_argument("--provider", default="", metavar="ID", help="Such as openai.")
    parser.add_argument("--at", metavar="DATE", help="When the call is made; now if left out.")
    parser.add_argument(
        "--input", type=int, default=0, metavar="N", help="Input tokens of the call; 0."
    )
    parser.add_argument("--tier", default="", help="Service tier, such as batch or flex.")


def run(out: OutputWrapper, options: dict[str, Any]) -> None:
    at = moment(options["at"]) if options["at"] else timezone.now()
    found = matches(
        options["model"],
        options["provider"],
        at=at,
        input_tokens=options["input"],
        service_tier=options["tier"],
    )
    for match in found:
        for line in sentences(match):
            out.write(line)
    if not any(match.price for match in found):
        hint = did_you_mean(options["model"])
        raise CommandError(f"{options['model']} has no price: add one, or a model alias.{hint}")


def did_you_mean(model: str) -> str:
    """A sentence with up to three known names that look like it, or none."""
    known = {*Price.objects.order_by().values_list("model", flat=True).distinct()}
    known |= {*ModelAlias.objects.values_list("alias", flat=True)}
    near = difflib.get_close_matches(model, sorted(known - {model}), n=3, cutoff=0.75)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def moment(text: str) -> dt.datetime:
    """A date, or a date and time, in the current time zone. Raises CommandError."""
    try:
        day = parse_date(text)
        found = parse_datetime(text) if day is None else dt.datetime.combine(day, dt.time())
    except ValueError:
        found = None
    if found is None:
        raise CommandError(f"--at {text}: give a date such as 2026-11-30 or 2026-11-30T12:00.")
    return timezone.make_aware(found) if timezone.is_naive(found) else found


def sentences(match: Match) -> list[str]:
    tried = ", ".join(f"{name} ({rows or 'no'} rows)" for name, rows in match.names)
    lines = [f"{match.provider or 'any provider'}: {match.model}"]
    if match.alias:
        lines.append(f"  is an alias of {match.alias}")
    lines.append(f"  names tried: {tried}")
    if match.price is None:
        missing = "no row is in force then" if match.chosen else "none of them has a row"
        return [*lines, f"  no price: {missing}"]
    return [*lines, f"  chosen: {described(match.price)}", f"  {rates(match.price)}"]


def described(price: ModelPrice) -> str:
    """Which row it is, in words."""
    words = [f"row {price.id} of {price.source}", f"tier {price.service_tier or 'default'}"]
    if price.min_input_tokens:
        words.append(f"{price.min_input_tokens:,} input tokens or more")
    since = price.effective_from
    words.append(f"from {since:%Y-%m-%d %H:%M} UTC" if since else "always")
    return ", ".join(words)


def rates(price: ModelPrice) -> str:
    given = ((name, getattr(price, name)) for name in RATES)
    return ", ".join(f"{name} ${rate.normalize():f}" for name, rate in given if rate is not None)
