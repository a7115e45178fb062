"""Chaos for a short time: `./run bench chaos` runs longer (TESTS_CHAOS_SECONDS here)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter as Counts
from pathlib import Path
from typing import Any

import pytest
from django.db.models import F

from project.provider import Entry
from tests.chaos import audit, losses
from tests.chaos.losses import Lost
from tests.stores import spend
from token_allowance.models import Counter, Limit, Reservation
from token_allowance.stores.events import Event

ROOT = Path(__file__).resolve().parents[1]
SECONDS = float(os.environ.get("TESTS_CHAOS_SECONDS", "8"))
SPARE_SECONDS = 120


def chaos(seconds: float, *options: str) -> dict[str, Any]:
    """The report of a time of chaos; what must hold in all of them is checked."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--seconds", str(seconds), *options],
        env={k: v for k, v in os.environ.items() if k != "PYTHONDEVMODE"},  # it is slow
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds + SPARE_SECONDS,
        check=False,
    )
    assert done.stdout, done.stderr[-3000:]
    sys.stdout.write(done.stdout)
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["problems"] == []
    assert report["processes"]["killed"] > 0
    assert report["samples of used + reserved"] > 3
    calls = report["calls by outcome"]
    assert calls["answered"] > 5
    assert calls["refused"] > 0
    return report


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_killed_callers_and_a_crashing_database_leave_books_that_balance(database):
    seconds = SECONDS if database == "postgresql" else SECONDS / 2
    report = chaos(seconds, "--database", database)
    assert report["requests at the provider"] <= report["ledger rows"]
    if database == "postgresql":
        assert report["database restarts"] >= 2
        assert report["calls by outcome"]["unavailable"] > 0


def test_a_redis_that_forgets_leaves_books_that_balance_but_for_what_it_lost():
    report = chaos(1.5 * SECONDS, "--store", "redis")
    happened = report["happened"]
    assert happened["FLUSHALL"] == happened["replica promoted"] == report["database restarts"] == 1
    assert happened["Redis killed"] >= 1
    assert happened["Redis killed, and the end of its file cut off"] >= 1
    lost = report["acknowledged by Redis, lost with it before the ledger had it"]
    ends = ("told, or told again, by processes that knew", "expired", "only Redis knew: no row")
    assert lost["calls"] == sum(lost[end] for end in ends)
    assert report["requests that nobody is charged for"] <= lost["only Redis knew: no row"]


def row(state: str, tokens: int = 100) -> Reservation:
    return Reservation(state=state, flags=[], input_tokens=tokens, output_tokens=tokens)


def asked(trace: str) -> Entry:
    return Entry(1, 0, "/v1/messages", "anthropic", 9, {"x-trace-id": trace})


WRONG = {
    "1 requests, 0 rows": {"rows": {}},
    "are not all final": {"rows": {"t": [row("settled"), row("reserved", 0)]}},
    "answered, and": {"rows": {"t": [row("settled"), row("settled")]}},
    "answered, and [('released', [])]": {"rows": {"t": [row("released", 0)]}},
    "answered, and [('settled', [])]": {"rows": {"t": [row("settled", 99)]}},
    "its lease ran out": {"rows": {"t": [row("settled"), row("expired", 0)]}},
    "surprised by": {"outcomes": {"t": "surprised by KeyError"}},
    "has 2 used and 0 reserved of 1": {"spent": 2},
    "is not the sum of its ledger rows": {"drift": 1},
    "": {},
}


@pytest.mark.django_db
@pytest.mark.parametrize("sentence", WRONG)
def test_the_audit_of_chaos_finds_what_is_wrong(sentence):
    wrong = WRONG[sentence]
    limit = Limit.objects.create(window="total", unit="calls", amount=9)
    for _ in range(wrong.get("spent", 1)):
        spend(7, tenant="a", user="u", feature="chaos")
    limit.amount = 1
    limit.save()
    Counter.objects.update(used=F("used") + wrong.get("drift", 0))
    found = audit.above("a", "u")
    told = audit.Told(wrong.get("outcomes", {"t": "answered"}), ended=True)
    rows = wrong.get("rows", {"t": [row("settled")]})
    counts = Counts(told.outcomes.values())
    found += audit.problems(audit.Books([told], {"t": [asked("t")]}, rows, 0, counts))
    assert any(sentence in one for one in found) if sentence else found == []


GONE = Event("5-0", "r", "01a0", b'{"trace_id": "t", "tenant": "a", "user": "u"}')
LOST = Lost(100.0, "FLUSHALL", [GONE])


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("told", "rows", "sentence"),
    [
        (audit.Told({"t": "began"}, False, 100.2), {}, ""),
        (audit.Told({"t": "began"}, False, 99.0), {"t": [row("expired", 0)]}, ""),
        (audit.Told({"t": "answered"}, False, 102.0, [101.5]), {}, ""),
        (audit.Told({"t": "answered"}, True, 110.0, [99.0]), {"t": [row("expired", 0)]}, ""),
        (audit.Told({"t": "answered"}, False, 104.0, [101.5]), {}, "1 requests, 0 rows"),
        (audit.Told({"t": "answered"}, True, 104.0, [101.5]), {}, "answered, and []"),
        (
            audit.Told({"t": "answered"}, True, 104.0, [101.5]),
            {"t": [row("expired", 0)]},
            "its lease ran out",
        ),
        (audit.Told({"t": "answered"}, False, 100.2), {"t": [row("settled")] * 2}, "answered, and"),
    ],
)
def test_the_audit_of_chaos_excuses_only_what_nobody_lived_to_tell_again(told, rows, sentence):
    counts = Counts(told.outcomes.values())
    books = audit.Books([told], {"t": [asked("t")]}, rows, 0, counts, [LOST])
    found = audit.problems(books)
    assert any(sentence in one for one in found) if sentence else found == []


def test_what_a_cut_file_has_lost_is_read_from_the_part_that_was_cut(tmp_path):
    def step(number):
        id = f"00000000-0000-0000-0000-00000000000{number}"
        parts = (b"XADD", b"{p}:events", f"{number}-0".encode(), b"i", id.encode(), b"s", b"r")
        words = (*parts, b"d", b'{"tenant": "a", "user": "u", "reserved_tokens": %d}' % number)
        said = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        return b"*1\r\n$5\r\nMULTI\r\n*%d\r\n%s*1\r\n$4\r\nEXEC\r\n" % (len(words), said)

    file = tmp_path / "aof"
    file.write_bytes(b"".join(map(step, range(1, 5))))
    events = losses.cut(file, len(step(1)) * 2 - 3)  # in the middle of the second step
    assert [event.id for event in events] == ["2-0", "3-0", "4-0"]
    assert len(file.read_bytes()) == len(step(1)) * 2 - 3
    lost = [Lost(1.0, "file cut", losses.behind(events, "2-0"))]
    assert losses.told(lost) == {"reserved": 2}
    assert losses.most(lost, "a", "u", "tokens") == 7
    assert losses.most(lost, "a", "u", "calls") == 2
    assert losses.most(lost, "a", "v", "calls") == 0
