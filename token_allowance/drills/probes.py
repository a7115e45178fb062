"""The processes that make a drill's calls, seen from the driller. They import everything anew, so
that nothing of this process can reach them but the database: also a Celery worker may start them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from django.conf import settings

from token_allowance.drills.figures import Call
from token_allowance.drills.plan import CannotDrill, Plan
from token_allowance.drills.probe import MARK
from token_allowance.stores.connections import in_tests

START_SECONDS = 60.0
END_SECONDS = 10.0
LAST_WORDS = 500
FIRST_SECONDS = 0.2  # between the calls of one caller, until the driller says otherwise


class Probe:
    """One process, and what it has said so far."""

    def __init__(self, number: int, task: dict[str, Any]) -> None:
        self.number = number
        self.client = ""
        self.calls: list[Call] = []
        own = environment()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this
        self.process = subprocess.Popen(
            [python(), "-m", "django", "allowance", "drill", "--probe"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=own,
            start_new_session=True,  # an interrupt of the driller's is not theirs
        )
        self._reader = threading.Thread(
            target=self._read, name="token-allowance-drill", daemon=True
        )
        self._reader.start()
        self.tell(task)

    def tell(self, document: Any) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has died: ``check`` says so
            self.process.stdin.write(json.dumps(document).encode() + b"\n")
            self.process.stdin.flush()

    def check(self) -> None:
        """Raises CannotDrill with its last words if it is no longer there."""
        if self.process.poll() is not None:
            raise CannotDrill(
                f"a process that makes the calls ended with status {self.process.returncode}: "
                f"{self._last_words()}"
            )

    def tell_to_end(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def end(self) -> None:
        assert self.process.stdout is not None
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(END_SECONDS)
        self.process.stdout.close()
        self._errors.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.startswith(MARK.encode()):
                continue
            said = json.loads(line[len(MARK) :])
            if "client" in said:
                self.client = said["client"]
            else:
                self.calls.append(Call(process=self.number, **said))

    def _last_words(self) -> str:
        self._errors.seek(0)
        return " ".join(self._errors.read().decode("utf-8", "replace").split())[-LAST_WORDS:]


class Probes:
    """``with Probes(plan, url, trace) as probes``: all of a drill's processes."""

    def __init__(self, plan: Plan, url: str, trace: str) -> None:
        self._callers = plan.callers()
        everybody = list(chain.from_iterable(self._callers))
        self._everybody = {caller.user for caller in everybody}
        self._to_be_stopped = {caller.user for caller in everybody if caller.stopped}
        self._url, self._trace = url, trace
        self._probes: list[Probe] = []

    def __enter__(self) -> Self:
        try:
            for number, callers in enumerate(self._callers):
                task = {
                    "url": self._url,
                    "trace": f"{self._trace}-{number}",
                    "callers": [{**c.values, "stopped": c.stopped} for c in callers],
                }
                self._probes.append(Probe(number, task))
            return self
        except BaseException:
            self.end()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.end()

    @property
    def client(self) -> str:
        return self._probes[0].client

    @property
    def calls(self) -> list[Call]:
        return [call for probe in self._probes for call in list(probe.calls)]

    def pace(self, seconds: float) -> None:
        """How long to leave between the calls of one caller."""
        for probe in self._probes:
            probe.tell(seconds)

    def check(self) -> None:
        for probe in self._probes:
            probe.check()

    def begin(self) -> None:
        """Let all begin to call at once, when all are there."""
        if not self._await(lambda: all(probe.client for probe in self._probes), START_SECONDS):
            raise CannotDrill(f"a process was not ready within {START_SECONDS:.0f} seconds")
        self.pace(FIRST_SECONDS)

    def await_served(self, since: int, seconds: float) -> bool:
        """Wait until every process has served each of its callers after this moment."""
        return self._await(lambda: self._whose(since, False) == self._everybody, seconds)

    def await_refused(self, since: int, seconds: float) -> bool:
        """Wait until every process has refused each caller whom the switch is to stop."""
        return self._await(lambda: self._whose(since, True) == self._to_be_stopped, seconds)

    def _whose(self, since: int, refused: bool) -> set[str]:
        return {c.user for c in self.calls if c.began >= since and bool(c.code) == refused}

    def _await(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def end(self) -> None:
        """Let all of them end: each finishes the call that it is in."""
        for probe in self._probes:
            probe.tell_to_end()
        for probe in self._probes:
            probe.end()


def python() -> str:
    """The interpreter; a server that embeds Python names itself instead."""
    if "python" in Path(sys.executable).name.lower():
        return sys.executable
    return str(Path(sys.exec_prefix) / "bin" / "python3")


def environment() -> dict[str, str]:
    """What a probe needs to find the same project. Raises CannotDrill if it could not."""
    if in_tests():
        raise CannotDrill("a test run's processes would not see its databases, but the real ones")
    module = getattr(settings, "SETTINGS_MODULE", None)
    if not module:
        raise CannotDrill("the settings are no module that another process could import")
    found = [path or os.getcwd() for path in sys.path]
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": str(module),
        "PYTHONPATH": os.pathsep.join(found),
    }
