"""What must hold once all is quiet: the ledger beside the counters, the provider and the callers.

Every check returns sentences on what is wrong.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from django.utils import timezone

from project.provider import Entry
from token_allowance import allowance, conf
from token_allowance.models import Counter, Reservation

FINAL = ("settled", "released", "expired")
REPORTED = (100, 100)  # tokens of every whole answer of the provider


@dataclass(frozen=True)
class Told:
    """What one process noted: how its calls ended by trace id, and whether it ended in order."""

    outcomes: dict[str, str]
    ended: bool


@dataclass(frozen=True)
class Books:
    """Everything that is known of a run, by trace id."""

    told: Sequence[Told]
    requests: dict[str, list[Entry]]
    rows: dict[str, list[Reservation]]
    outages: int
    outcomes: Counts[str] = field(default_factory=Counts)

    def states(self) -> Counts[str]:
        return Counts(
            " ".join([row.state, *sorted(row.flags)]) for rows in self.rows.values() for row in rows
        )

    def exposure(self) -> tuple[int, int]:
        """Expired rows: how many there are, and how many of them were never sent."""
        expired = [
            trace for trace, rows in self.rows.items() for row in rows if row.state == "expired"
        ]
        return len(expired), sum(trace not in self.requests for trace in expired)


def read(told: Sequence[Told], log: Sequence[Entry], alias: str, outages: int) -> Books:
    requests, rows = defaultdict(list), defaultdict(list)
    for entry in log:
        requests[entry.headers.get("x-trace-id", "")].append(entry)
    for row in Reservation.objects.using(alias):
        rows[row.trace_id].append(row)
    outcomes = Counts(outcome for one in told for outcome in one.outcomes.values())
    return Books(told, dict(requests), dict(rows), outages, outcomes)


def problems(books: Books, alias: str) -> list[str]:
    return [
        *_requests_without_a_row(books),
        *_rows_still_open(books),
        *_answers_not_charged_once(books),
        *_expired_without_cause(books),
        *_surprises(books),
        *_counters(alias),
    ]


def _requests_without_a_row(books: Books) -> Iterator[str]:
    """No call without a reservation: each attempt has its own."""
    for trace, entries in books.requests.items():
        if len(entries) > len(books.rows.get(trace, [])):
            yield f"{trace}: {len(entries)} requests, {len(books.rows.get(trace, []))} rows"


def _rows_still_open(books: Books) -> Iterator[str]:
    for trace, rows in books.rows.items():
        if any(row.state not in FINAL for row in rows):
            yield f"{trace}: {[row.state for row in rows]} are not all final"


def _answers_not_charged_once(books: Books) -> Iterator[str]:
    """A caller that lived to see the whole answer is charged for it exactly once.

    A process that was killed while it kept a settlement for a database that was away has taken
    what it knew with it: the row has expired, and is listed.
    """
    for one in books.told:
        for trace, outcome in one.outcomes.items():
            if outcome != "answered":
                continue
            rows = books.rows.get(trace, [])
            whole = [r for r in rows if (r.input_tokens, r.output_tokens) == REPORTED]
            charged = [r for r in whole if r.state == "settled" and "estimated" not in r.flags]
            lost = [r for r in rows if r.state == "expired"]
            if len(charged) + len(lost) != 1 or (lost and (one.ended or not books.outages)):
                yield f"{trace}: answered, and {[(r.state, r.flags) for r in rows]}"


def _expired_without_cause(books: Books) -> Iterator[str]:
    """Only a killed process, or a database that did not confirm, leaves a hold to its lease."""
    for one in books.told:
        for trace, outcome in one.outcomes.items():
            expired = [row for row in books.rows.get(trace, []) if row.state == "expired"]
            if expired and one.ended and not (books.outages and outcome == "unavailable"):
                yield f"{trace}: {outcome}, its process ended in order, and its lease ran out"


def _surprises(books: Books) -> Iterator[str]:
    for outcome, number in books.outcomes.items():
        if outcome.startswith("surprised"):
            yield f"{number} calls were {outcome}"


def _counters(alias: str) -> Iterator[str]:
    for drift in conf.store().rebuild(timezone.now()):
        yield f"{drift} is not the sum of its ledger rows"
    for counter in Counter.objects.using(alias).exclude(reserved=0):
        yield f"{counter.key} still has {counter.reserved} reserved"


def above(tenants: str, users: str) -> list[str]:
    """Budgets that have more used and reserved than their amount, now."""
    return [
        f"{room.limit} has {room.used} used and {room.reserved} reserved of {room.amount}"
        for tenant in tenants
        for user in users
        for room in allowance.remaining(tenant=tenant, user=user, feature="chaos")
        if room.used + room.reserved > room.amount
    ]
