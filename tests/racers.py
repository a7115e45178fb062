"""The four processes of a race, seen from the test that starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from project.provider import Provider

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = 4


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def racers(provider: Provider, databases: None, django_db_blocker: Any) -> Iterator[Racers]:
    """The four processes, calling this module's provider."""
    with django_db_blocker.unblock():
        racers = Racers(provider.openai_url)
    yield racers
    racers.close()


class Racers:
    """The four processes. They import once and serve every test of this file."""

    def __init__(self, url: str) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDEVMODE"}  # it is slow
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.races"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env=environment,
            )
            for _ in range(PROCESSES)
        ]
        names = {alias: str(connections[alias].settings_dict["NAME"]) for alias in connections}
        self._ask([{"databases": names, "url": url}] * PROCESSES)

    def race(
        self,
        alias: str,
        kind: str,
        callers: list[list[dict[str, Any]]],
        store: dict[str, Any] | None = None,
        wait_seconds: float = 0,
    ) -> dict[str, int]:
        """Share the callers out among the processes and let all of them go at once."""
        task = {"alias": alias, "kind": kind, "store": store, "wait_seconds": wait_seconds}
        rounds = [{**task, "callers": callers[number::PROCESSES]} for number in range(PROCESSES)]
        assert self._ask(rounds) == ["ready"] * PROCESSES
        for process in self.processes:
            self._write(process, "go")
        answers = [self._read(process) for process in self.processes]
        if errors := [error for answer in answers for error in answer["errors"]]:
            raise AssertionError(f"{len(errors)} calls failed otherwise, first with {errors[0]}")
        return {name: sum(a[name] for a in answers) for name in ("admitted", "refused")}

    def settle(self, alias: str) -> None:
        self._ask([{"alias": alias, "kind": "settle"}] * PROCESSES)

    def rest(self, alias: str) -> None:
        """Forget what is held, and close the idle connections: then the server has counted all."""
        self._ask([{"alias": alias, "kind": "rest"}] * PROCESSES)

    def close(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def _ask(self, documents: list[Any]) -> list[Any]:
        for process, document in zip(self.processes, documents, strict=True):
            self._write(process, document)
        return [self._read(process) for process in self.processes]

    @staticmethod
    def _write(process: subprocess.Popen[str], document: Any) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(document) + "\n")
        process.stdin.flush()

    @staticmethod
    def _read(process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "a racing process has ended; its last words are on standard error"
        return json.loads(line)
