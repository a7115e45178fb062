"""Chaos for a short time: `./run bench chaos` runs longer (TESTS_CHAOS_SECONDS here)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter as Counts
from pathlib import Path

import pytest
from django.db.models import F

from project.provider import Entry
from tests.chaos import audit
from tests.stores import spend
from token_allowance.models import Counter, Limit, Reservation

ROOT = Path(__file__).resolve().parents[1]
SECONDS = float(os.environ.get("TESTS_CHAOS_SECONDS", "8"))
SPARE_SECONDS = 120


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_killed_callers_and_a_crashing_database_leave_books_that_balance(database):
    seconds = SECONDS if database == "postgresql" else SECONDS / 2
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--seconds", str(seconds), "--database", database],
        env={k: v for k, v in os.environ.items() if k != "PYTHONDEVMODE"},  # it is slow
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds + SPARE_SECONDS,
        check=False,
    )
    assert done.stdout, done.stderr[-3000:]
    sys.stdout.write(done.stdout)
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert report["processes"]["killed"] > 0
    assert report["samples of used + reserved"] > 3
    calls = report["calls by outcome"]
    assert calls["answered"] > 5
    assert calls["refused"] > 0
    assert report["requests at the provider"] <= report["ledger rows"]
    if database == "postgresql":
        assert report["database restarts"] >= 2
        assert calls["unavailable"] > 0


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
    found += audit.problems(audit.Books([told], {"t": [asked("t")]}, rows, 0, counts), "default")
    assert any(sentence in one for one in found) if sentence else found == []
