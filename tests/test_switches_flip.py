"""From the flip to its effect: four processes under load, in each database and behind Redis."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connections

from tests.flippers import PROCESSES, Load, Process, flip
from token_allowance.models import Switch, SwitchEvent
from token_allowance.stores.redis.versions import HOLD_MILLISECONDS, LEASE_MILLISECONDS

FLIPS = 5
LEASE_SECONDS = LEASE_MILLISECONDS / 1000
HOLD_SECONDS = HOLD_MILLISECONDS / 1000
SLACK_SECONDS = 0.5  # a thread may be kept waiting between its look at the clock and its call


@pytest.fixture(scope="module")
def processes(databases: None, django_db_blocker: Any) -> Iterator[list[Process]]:
    """They import once and serve every test of this file."""
    with ExitStack() as stack, django_db_blocker.unblock():
        made = [Process() for _ in range(PROCESSES)]
        for process in made:
            stack.callback(process.close)
        assert [process.read() for process in made] == ["set up"] * PROCESSES
        yield made


@pytest.fixture
def load(database: str, settings: LazySettings, processes: list[Process]) -> Iterator[Load]:
    made = Load(processes, database, settings.TOKEN_ALLOWANCE["STORE"])
    yield made
    made.rest()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.callspec.params["database"])


def show(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n  {text}\n")


def said(seconds: list[float]) -> str:
    return f"{1000 * median(seconds):.0f} (at most {1000 * max(seconds):.0f})"


def test_no_call_that_begins_after_engage_returned_is_admitted(
    load: Load, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flips = [flip(load, f"flip {number}") for number in range(FLIPS)]
    assert [one.late for one in flips] == [0] * FLIPS
    show(
        capsys,
        f"{name}: {FLIPS} flips, {PROCESSES} processes, {sum(one.calls for one in flips):,} calls. "
        "Milliseconds after engage() was called: "
        f"it returned {said([one.returned for one in flips])}, "
        f"first refusal {said([one.first_refused for one in flips])}, "
        f"last admitted call began {said([one.last_admitted for one in flips])}. "
        "Admitted that began after it returned: 0",
    )


def written(alias: str) -> float:
    """A switch by plain SQL, which nobody announces; when it was committed."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            'INSERT INTO token_allowance_switch (tenant, "user", feature, model, reason, by, '
            "engaged_at) VALUES ('', '', 'agent', '', 'by hand', 'dba', '2026-01-01 00:00:00+00')"
        )
    return time.monotonic()


@pytest.mark.parametrize("how", ["killed after its commit", "that tells nobody"])
def test_a_writer_that_dies_after_its_commit_is_obeyed_within_two_seconds(
    how: str, load: Load, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed between commit and publish; or one that announces nothing at all, as plain SQL."""
    if how == "that tells nobody":
        if name == "redis":
            time.sleep(HOLD_SECONDS)  # the limit was announced: until then nobody trusts a lease
        committed_at = written(load.alias)
    else:
        writer = Process()
        try:
            assert writer.read() == "set up"
            writer.write(engage=load.store)
            committed_at = float(writer.read())
        finally:
            writer.close()
    time.sleep(LEASE_SECONDS + SLACK_SECONDS)
    reports = load.stopped(committed_at, committed_at)
    late = sum(report["late"] for report in reports)
    last = max(report["last_admitted"] for report in reports)
    show(
        capsys,
        f"{name}: a writer {how}: {late:,} calls began after the commit and were admitted"
        f"{f', the last of them {1000 * last:,.0f} ms after it' if late else ''}",
    )
    assert last <= LEASE_SECONDS + SLACK_SECONDS
    events = SwitchEvent.objects.using(load.alias).count()
    assert events == (how != "that tells nobody")
    assert Switch.objects.using(load.alias).filter(released_at=None).count() == 1
