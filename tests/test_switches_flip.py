"""From the flip to its effect: four processes under load, in each database and behind Redis."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connections

from token_allowance import allowance
from token_allowance.models import Limit, Switch, SwitchEvent
from token_allowance.stores.redis.versions import HOLD_MILLISECONDS, LEASE_MILLISECONDS

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = 4
FLIPS = 5
EFFECT_SECONDS = 30.0  # until each process has been refused: a busy machine starts late
LEASE_SECONDS = LEASE_MILLISECONDS / 1000
HOLD_SECONDS = HOLD_MILLISECONDS / 1000
SLACK_SECONDS = 0.5  # a thread may be kept waiting between its look at the clock and its call

Report = dict[str, Any]


class Process:
    """One process of tests.flips."""

    def __init__(self) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDEVMODE"}  # it is slow
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.flips"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        names = {alias: str(connections[alias].settings_dict["NAME"]) for alias in connections}
        self.write(databases=names)

    def write(self, **document: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(document) + "\n")
        self._process.stdin.flush()

    def read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "it has ended; its last words are on standard error"
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._process.stdin.close()


@pytest.fixture(scope="module")
def processes(databases: None, django_db_blocker: Any) -> Iterator[list[Process]]:
    """They import once and serve every test of this file."""
    with ExitStack() as stack, django_db_blocker.unblock():
        made = [Process() for _ in range(PROCESSES)]
        for process in made:
            stack.callback(process.close)
        assert [process.read() for process in made] == ["set up"] * PROCESSES
        yield made


class Load:
    """All of them calling without a pause, under a limit that counts each call."""

    def __init__(self, processes: list[Process], alias: str, store: dict[str, Any]) -> None:
        self.processes, self.alias, self.store = processes, alias, store
        Limit.objects.using(alias).create(unit="tokens", amount=10**12, window="total")
        self._all(load=store)
        self.go_on()

    def _all(self, **document: Any) -> list[Any]:
        for process in self.processes:
            process.write(**document)
        return [process.read() for process in self.processes]

    def reports(self, began_at: float, returned_at: float) -> list[Report]:
        found = self._all(since=[began_at, returned_at])
        assert [report["errors"] for report in found] == [[]] * PROCESSES
        return found

    def go_on(self) -> None:
        """Wait until each has been admitted."""
        self._until("admitted", time.monotonic(), 0)

    def stopped(self, began_at: float, returned_at: float) -> list[Report]:
        """Wait until each has been refused, and a little longer."""
        self._until("refused", began_at, returned_at)
        time.sleep(0.3)
        return self.reports(began_at, returned_at)

    def _until(self, name: str, began_at: float, returned_at: float) -> None:
        end = time.monotonic() + EFFECT_SECONDS
        while not all(report[name] for report in self.reports(began_at, returned_at)):
            assert time.monotonic() < end, f"a process has none {name}"
            time.sleep(0.05)

    def rest(self) -> None:
        self._all(rest=self.alias)


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
    took, first, last, calls = [], [], [], 0
    for flip in range(FLIPS):
        began_at = time.monotonic()
        allowance.engage("feature:agent", reason=f"flip {flip}", by="a test")
        returned_at = time.monotonic()
        reports = load.stopped(began_at, returned_at)
        assert [report["late"] for report in reports] == [0] * PROCESSES
        took.append(returned_at - began_at)
        first.append(min(report["first_refused"] for report in reports))
        last.append(max(report["last_admitted"] for report in reports))
        calls += sum(report["admitted"] + report["refused"] for report in reports)
        allowance.disengage("feature:agent", by="a test")
        load.go_on()
    show(
        capsys,
        f"{name}: {FLIPS} flips, {PROCESSES} processes, {calls:,} calls. Milliseconds after "
        f"engage() was called: it returned {said(took)}, first refusal {said(first)}, last "
        f"admitted call began {said(last)}. Admitted that began after it returned: 0",
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
