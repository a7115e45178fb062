"""Four processes under load while a switch is pulled, seen from who pulls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import connections

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = 4
ALIASES = ("default", "sqlite")
EFFECT_SECONDS = 30.0  # until each process has been refused: a busy machine starts late

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
        names = {alias: str(connections[alias].settings_dict["NAME"]) for alias in ALIASES}
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


class Load:
    """All of them calling without a pause, under a limit that counts each call."""

    def __init__(self, processes: list[Process], alias: str, store: dict[str, Any]) -> None:
        self.processes, self.alias, self.store = processes, alias, store
        from token_allowance.models import Limit, Price

        rates = {"input_mtok": 1, "output_mtok": 1}
        Price.objects.using(alias).get_or_create(provider="openai", model="m", defaults=rates)
        room: dict[str, Any] = {"unit": "tokens", "amount": 10**12, "window": "total"}
        Limit.objects.using(alias).get_or_create(**room)
        self._all(load=store)
        self.go_on()

    def _all(self, **document: Any) -> list[Any]:
        for process in self.processes:
            process.write(**document)
        return [process.read() for process in self.processes]

    def reports(self, began_at: float, returned_at: float) -> list[Report]:
        found = self._all(since=[began_at, returned_at])
        errors = [error for report in found for error in report["errors"]]
        assert errors == [], errors
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


@dataclass(frozen=True, slots=True)
class Flip:
    """One pull under load: seconds since ``engage`` was called, and how many calls there were."""

    returned: float
    first_refused: float
    last_admitted: float  # when the last one began
    late: int  # admitted although they began after ``engage`` had returned
    calls: int


def flip(load: Load, reason: str) -> Flip:
    """Pull the switch, wait for its effect in each process, and release it."""
    from token_allowance import allowance

    began_at = time.monotonic()
    allowance.engage("feature:agent", reason=reason, by="flips")
    returned_at = time.monotonic()
    reports = load.stopped(began_at, returned_at)
    allowance.disengage("feature:agent", by="flips")
    load.go_on()
    return Flip(
        returned=returned_at - began_at,
        first_refused=min(report["first_refused"] for report in reports),
        last_admitted=max(report["last_admitted"] for report in reports),
        late=sum(report["late"] for report in reports),
        calls=sum(report["admitted"] + report["refused"] for report in reports),
    )
