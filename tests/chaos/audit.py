"""What must hold once all is quiet: the ledger beside the counters, the provider and the callers.

Every check returns sentences on what is wrong.
"""

from __future__ import annotations

import math
from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from django.db.models import Count, Sum
from django.utils import timezone

from project.provider import Entry
from tests import stores
from tests.chaos.losses import Lost
from token_allowance import allowance, conf
from token_allowance.admission import Remaining
from token_allowance.models import DeadLetter, HourlySpend, PendingSettlement, Reservation

FINAL = ("settled", "released", "expired")
REPORTED = (100, 100)  # tokens of every whole answer of the provider
NOTICE_SECONDS = 1.0  # longer than a server that forgets is away
TELL_AGAIN_SECONDS = 2.0


@dataclass(frozen=True)
class Told:
    """What one process noted: how its calls ended by trace id, and whether it ended in order."""

    outcomes: dict[str, str]
    ended: bool
    died_at: float = math.inf  # seconds since 1970, in order or not
    heard_at: Sequence[float] = ()  # when a store has answered it

    def has_told_again(self, lost_at: float) -> bool:
        """Has it met the store that forgot, and lived long enough to tell it what it knew?"""
        met = next((at for at in self.heard_at if at > lost_at + NOTICE_SECONDS), math.inf)
        return self.died_at > met + TELL_AGAIN_SECONDS


@dataclass(frozen=True)
class Books:
    """Everything that is known of a run, by trace id."""

    told: Sequence[Told]
    requests: dict[str, list[Entry]]
    rows: dict[str, list[Reservation]]
    outages: int
    outcomes: Counts[str] = field(default_factory=Counts)
    losses: Sequence[Lost] = ()

    def forgotten(self, one: Told, trace: str) -> int:
        """How many calls of this trace a store has acknowledged and lost before this process had
        to end that knew of them."""
        return len({
            id
            for lost in self.losses
            if not one.has_told_again(lost.at)
            for id in lost.calls_of(trace)
        })  # fmt: skip

    def states(self) -> Counts[str]:
        return Counts(
            " ".join([row.state, *sorted(row.flags)]) for rows in self.rows.values() for row in rows
        )

    def uncharged(self) -> int:
        """Requests that the ledger has no row of."""
        return sum(
            max(0, len(entries) - len(self.rows.get(trace, [])))
            for trace, entries in self.requests.items()
        )

    def exposure(self) -> tuple[int, int]:
        """Expired rows: how many there are, and how many of them were never sent."""
        expired = [
            trace for trace, rows in self.rows.items() for row in rows if row.state == "expired"
        ]
        return len(expired), sum(trace not in self.requests for trace in expired)


def read(
    told: Sequence[Told],
    log: Sequence[Entry],
    alias: str,
    outages: int,
    losses: Sequence[Lost] = (),
) -> Books:
    requests, rows = defaultdict(list), defaultdict(list)
    for entry in log:
        requests[entry.headers.get("x-trace-id", "")].append(entry)
    for row in Reservation.objects.using(alias):
        rows[row.trace_id].append(row)
    outcomes = Counts(outcome for one in told for outcome in one.outcomes.values())
    return Books(told, dict(requests), dict(rows), outages, outcomes, losses)


def problems(books: Books) -> list[str]:
    return [
        *_requests_without_a_row(books),
        *_rows_still_open(books),
        *_answers_not_charged_once(books),
        *_expired_without_cause(books),
        *_surprises(books),
        *_counters(),
    ]


def _requests_without_a_row(books: Books) -> Iterator[str]:
    """No call without a reservation: each attempt has its own."""
    makers = {trace: one for one in books.told for trace in one.outcomes}
    for trace, entries in books.requests.items():
        missing = len(entries) - len(books.rows.get(trace, []))
        if missing > 0 and (trace not in makers or missing > books.forgotten(makers[trace], trace)):
            yield f"{trace}: {len(entries)} requests, {len(books.rows.get(trace, []))} rows"


def _rows_still_open(books: Books) -> Iterator[str]:
    for trace, rows in books.rows.items():
        if any(row.state not in FINAL for row in rows):
            yield f"{trace}: {[row.state for row in rows]} are not all final"


def _answers_not_charged_once(books: Books) -> Iterator[str]:
    """A caller that lived to see the whole answer is charged for it exactly once.

    A process that was killed while it kept a settlement for a database that was away has taken
    what it knew with it: the row has expired, and is listed. So has one that was killed soon after
    its store had forgotten the call.
    """
    for one in books.told:
        for trace, outcome in one.outcomes.items():
            if outcome != "answered":
                continue
            rows = books.rows.get(trace, [])
            whole = [r for r in rows if (r.input_tokens, r.output_tokens) == REPORTED]
            charged = [r for r in whole if r.state == "settled" and "estimated" not in r.flags]
            lost = [r for r in rows if r.state == "expired"]
            if books.forgotten(one, trace):
                if len(charged) + len(lost) <= 1:
                    continue
            elif len(charged) + len(lost) == 1 and not (lost and (one.ended or not books.outages)):
                continue
            yield f"{trace}: answered, and {[(r.state, r.flags) for r in rows]}"


def _expired_without_cause(books: Books) -> Iterator[str]:
    """Only a killed process, or a database that did not confirm, leaves a hold to its lease."""
    for one in books.told:
        for trace, outcome in one.outcomes.items():
            expired = [row for row in books.rows.get(trace, []) if row.state == "expired"]
            if books.forgotten(one, trace):
                continue
            if expired and one.ended and not (books.outages and outcome == "unavailable"):
                yield f"{trace}: {outcome}, its process ended in order, and its lease ran out"


def _surprises(books: Books) -> Iterator[str]:
    for outcome, number in books.outcomes.items():
        if outcome.startswith("surprised"):
            yield f"{number} calls were {outcome}"


def _counters() -> Iterator[str]:
    for drift in conf.store().rebuild(timezone.now()):
        yield f"{drift} is not the sum of its ledger rows"
    for key, (_, reserved) in stores.counters(conf.store()).items():
        if reserved:
            yield f"{key} still has {reserved} reserved"


def leftovers() -> Iterator[str]:
    """What a drained store leaves: nothing waits, and the roll-ups are sums of the ledger."""
    for model in (DeadLetter, PendingSettlement):
        if number := model.objects.count():
            yield f"{number} rows of {model.__name__} are left"
    charged = Reservation.objects.filter(settled_at__isnull=False, state__in=("settled", "expired"))
    rolled = HourlySpend.objects.aggregate(calls=Sum("calls"), micros=Sum("cost_micros"))
    summed = charged.aggregate(calls=Count("id"), micros=Sum("cost_micros"))
    if rolled != summed:
        yield f"the roll-ups say {rolled}, the ledger says {summed}"


def above(tenants: str, users: str) -> list[str]:
    """Budgets that have more used and reserved than their amount, now."""
    return [
        f"{room.limit} has {room.used} used and {room.reserved} reserved of {room.amount}"
        for _, _, room in full(tenants, users)
    ]


def full(tenants: str, users: str) -> list[tuple[str, str, Remaining]]:
    """The same budgets, each with the tenant and the user whose calls it counts."""
    return [
        (tenant, user, room)
        for tenant in tenants
        for user in users
        for room in allowance.remaining(tenant=tenant, user=user, feature="chaos")
        if room.used + room.reserved > room.amount
    ]
