"""Processes that reserve and settle until they are killed.

`python -m tests.callers PARENT_PID [MODULE]` imports once and then forks a caller for each line of
JSON on its standard input; a caller says on the shared output what it does. All die with the
parent. What a caller does is a function here or in MODULE, by its name.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from tests.launcher import die_with_parent

MOST_SECONDS = 400


class Callers:
    """The process that makes callers, seen from a test."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def start(self, **task: Any) -> int:
        """Fork a caller; its process id, once it has said that it is at work."""
        from django.conf import settings
        from django.db import connections

        task["store"] = settings.TOKEN_ALLOWANCE["STORE"]
        task["databases"] = {a: str(connections[a].settings_dict["NAME"]) for a in connections}
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline()
        assert said, "the callers have died"
        return int(said)

    @staticmethod
    def kill(pid: int) -> None:
        """SIGKILL; returns when the process is gone."""
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.001)
        raise TimeoutError(f"{pid} was killed and is still there")


@contextmanager
def running(module: str = "tests.callers") -> Iterator[Callers]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.callers", str(os.getpid()), module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield Callers(process)
        finally:
            process.kill()


def hold_and_wait(tokens: int, count: int) -> None:
    """Reserve some calls, and never come to settle them."""
    from tests.stores import hold

    for number in range(count):
        hold(tokens, tenant="acme", idempotency_key=f"call-{number}")
    say(os.getpid())
    time.sleep(MOST_SECONDS)


def wait_in_line(tokens: int, seconds: float) -> None:
    """Wait for room that others hold."""
    from django.conf import settings
    from django.test import override_settings

    from tests.waiters import call

    with override_settings(TOKEN_ALLOWANCE={**settings.TOKEN_ALLOWANCE, "WAIT_SECONDS": seconds}):
        say(os.getpid())
        with call(tokens):
            time.sleep(MOST_SECONDS)


def call_for_ever(seed: int) -> None:
    """Reserve, extend, settle and release at random; some calls are forgotten."""
    from tests.stores import hold
    from token_allowance.exceptions import AllowanceExceeded
    from token_allowance.usage import Usage

    chance = random.Random(seed)
    say(os.getpid())
    while True:
        try:
            call = hold(chance.randint(1, 50), tenant=chance.choice("ab"), user=chance.choice("uv"))
            if chance.random() < 0.3:
                call.extend(Usage(chance.randint(0, 20)))
        except AllowanceExceeded:
            continue
        match chance.choice(["settle", "settle", "release", "forget"]):
            case "settle":
                call.settle(Usage(chance.randint(0, call.amounts.tokens)))
            case "release":
                call.release()


def caller(
    module: Any, kind: str, store: dict[str, Any], databases: dict[str, str], **task: Any
) -> None:
    """What a forked process does."""
    from django.conf import settings
    from django.db import connections
    from django.test import override_settings

    for name, database in databases.items():
        settings.DATABASES[name]["NAME"] = connections.settings[name]["NAME"] = database
    with override_settings(TOKEN_ALLOWANCE={"STORE": store}):
        getattr(module, kind)(**task)


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def main(parent_pid: str, module_name: str) -> None:
    die_with_parent(int(parent_pid), signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the killed leave no zombies
    signal.alarm(MOST_SECONDS)
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import django

    django.setup()
    import tests.stores  # noqa: F401  what every caller needs

    module = import_module(module_name)

    me = os.getpid()
    say("ready")
    for line in sys.stdin:
        if os.fork() == 0:
            try:
                die_with_parent(me, signal.SIGKILL)
                caller(module, **json.loads(line))
            finally:
                os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
