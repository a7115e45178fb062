"""A process whose calls are refused: ``python -m tests.refused_callers``.

Its first line of standard input says where the databases and the store are; each further one is a
number of calls, which it answers with how many were refused, or the same for a child to be forked.
It ends when its input does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connections

ROOT = Path(__file__).resolve().parents[1]


class Caller:
    """One such process, seen from the test that starts it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, document: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(document) + "\n")
        self.process.stdin.flush()

    def answer(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(30)


@contextmanager
def running(number: int) -> Iterator[list[Caller]]:
    """So many of them, with the databases and settings of now."""
    names = {alias: str(connections[alias].settings_dict["NAME"]) for alias in connections}
    callers = [
        Caller(
            subprocess.Popen(
                [sys.executable, "-m", "tests.refused_callers"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
        )
        for _ in range(number)
    ]
    try:
        for caller in callers:
            caller.ask({"databases": names, "settings": settings.TOKEN_ALLOWANCE})
        yield callers
    finally:
        for caller in callers:
            caller.process.kill()
            caller.process.wait()
            for pipe in (caller.process.stdin, caller.process.stdout):
                assert pipe is not None
                pipe.close()


def call(number: int) -> bool:
    from token_allowance import allowance

    try:
        with allowance.call(
            provider="openai", model="m", tenant="acme", user=f"u{number % 2}", feature="agent"
        ):
            return False
    except allowance.AllowanceExceeded:
        return True


def calls(number: int) -> int:
    return sum(call(place) for place in range(number))


def forked(number: int) -> int:
    """What a child saw refused; as a worker's, its end runs no exit handlers."""
    pid = os.fork()
    if pid == 0:
        refused = calls(number)
        time.sleep(3)  # its own thread writes meanwhile
        os._exit(refused)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    first = json.loads(sys.stdin.readline())
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import django

    for alias, name in first["databases"].items():
        settings.DATABASES[alias]["NAME"] = name
    settings.TOKEN_ALLOWANCE = first["settings"]
    django.setup()
    for line in iter(sys.stdin.readline, ""):
        asked = json.loads(line)
        refused = forked(asked["child"]) if isinstance(asked, dict) else calls(asked)
        sys.stdout.write(f"{refused}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
