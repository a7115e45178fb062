"""What the ledger knows of the calls that a switch stops: how many are under way, or ever were."""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from django.utils import timezone

from token_allowance import conf, money, policy
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import HourlySpend, Reservation
from token_allowance.prices.matching import LOOKED_AT
from token_allowance.stops import SwitchRule
from token_allowance.switches import NAMES, Target

SEEN_DAYS = 7
PEOPLE = ("tenant", "user", "session")


@dataclass(frozen=True, slots=True)
class InFlight:
    """The calls that a switch finds under way, and what they hold."""

    calls: int
    micros: int

    @property
    def said(self) -> str:
        if not self.calls:
            return "no calls"
        noun = "call" if self.calls == 1 else "calls"
        return f"{self.calls:,} {noun}, about {money.format_usd(self.micros)} reserved"


def in_flight(of: Target, percent: int) -> InFlight:
    now, part = timezone.now(), SwitchRule((), "", None, percent)
    rows = Reservation.objects.filter(state=Reservation.States.RESERVED, expires_at__gt=now)
    rows = rows.filter(**{name: value for name, value in _known(of) if value})
    held = [
        row["reserved_micros"] or 0
        for row in rows.values(*PEOPLE, "reserved_micros").iterator()
        if part.stops({name: row[name] for name in PEOPLE}, now)
    ]
    return InFlight(len(held), sum(held))


def doubts(of: Target) -> Iterator[str]:
    """A sentence for each value that no call of late had: it may be mistyped."""
    since = timezone.now() - dt.timedelta(days=SEEN_DAYS)
    recent = HourlySpend.objects.filter(starts_at__gte=since).order_by()
    newest = Reservation.objects.order_by("-id")[:LOOKED_AT]
    for name, value in _known(of):
        if not value or recent.filter(**{name: value}).exists():
            continue
        seen = {*newest.values_list(name, flat=True)}
        if name in ("feature", "model"):  # of people there may be too many
            seen |= {*recent.values_list(name, flat=True).distinct()}
        if seen and value not in seen:
            near = difflib.get_close_matches(value, sorted(seen - {""}), n=3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            yield f"Note: the ledger has no call of {name} {value} in {SEEN_DAYS} days.{hint}"


def ledger_notes() -> Iterator[str]:
    """How far to trust what the ledger says, and whether the store can be reached."""
    try:
        behind = conf.store().behind_seconds()
    except StoreUnavailable as error:
        yield f"The store cannot be reached: {error}"
        yield (
            "The switch stands in the database, which is what counts: no process admits such a "
            "call without the store, nor later than two seconds after it is back."
        )
        return
    if behind is not None and behind >= 1:
        yield f"The ledger is {behind:,.1f} seconds behind the store."


def _known(of: Target) -> list[tuple[str, str]]:
    """The target's values as the ledger has them."""
    values = zip(NAMES, of.values, strict=True)
    decided = policy.confirmed()
    return [(name, decided.model(value) if name == "model" else value) for name, value in values]
