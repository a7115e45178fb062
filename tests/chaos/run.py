"""A time of chaos: callers are killed and started, the database is stopped, crashed and started."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db import connections
from django.test import override_settings
from django.utils import timezone

from project.provider import FIXED_COST, ProviderProcess, Reply
from tests import callers
from tests.chaos import audit
from tests.chaos.callers import TENANTS, USERS
from tests.metering import CLAUDE, GPT
from tests.servers import Postgres
from tests.stores import configured, let_pass
from token_allowance import conf
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import Limit, Price

PROCESSES = 4
OUTAGES = (signal.SIGINT, signal.SIGKILL, signal.SIGQUIT)
OUTAGE_EVERY_SECONDS = 10.0
AWAY_SECONDS = 0.5
END_SECONDS = 30.0
TIGHT_CALLS = 3  # of one user, soon full
LEASE_SECONDS = 600
HEARD = ("answered", "left", "refused")  # the outcomes of calls that a store has decided
KILLED_EACH_MOMENT = 0.3
Due = tuple[float, Callable[[], None]]  # seconds after the beginning, and what happens then
SLOW = replace(FIXED_COST, chunks=4, chunk_delay_seconds=0.02)
REPLIES = (  # beside good answers, at once and in steps
    SLOW,
    replace(FIXED_COST, delay_seconds=0.05),
    replace(FIXED_COST, delay_seconds=0.2, chunk_delay_seconds=0.05),
    Reply(status=500, headers={"retry-after-ms": "5"}),
    Reply(status=429, headers={"retry-after-ms": "5"}),
    replace(FIXED_COST, drop_after_chunks=1),
    Reply(reset_connection=True),
)


class Chaos:
    """``run`` returns figures, and under "problems" every invariant that did not hold."""

    processes = PROCESSES
    killed_each_moment = KILLED_EACH_MOMENT

    def __init__(self, folder: Path, postgres: Postgres | None, seed: int) -> None:
        self.folder, self.postgres = folder, postgres
        self.alias = "default" if postgres else "sqlite"
        self.chance = random.Random(seed)
        self.running: list[int] = []
        self.died_at: dict[int, float] = {}
        self.begun = self.killed = self.outages = self.samples = self.blind = 0
        self.problems: set[str] = set()

    def run(self, seconds: float) -> dict[str, Any]:
        with (
            override_settings(TOKEN_ALLOWANCE=self.settings()),
            ProviderProcess() as provider,
            callers.running("tests.chaos.callers") as processes,
        ):
            self.prepare()
            replies = self.chance.choices(REPLIES, k=2000)
            provider.script(
                [r if self.chance.random() < 0.4 else FIXED_COST for r in replies],
                default=SLOW,
            )
            began = time.monotonic()
            for now in self.moments(began + seconds, seconds):
                self.keep_running(processes, provider.anthropic_url)
                if now - began > 0.5 and self.chance.random() < self.killed_each_moment:
                    self.kill_one(processes)
            self.end()
            log = provider.wait_until_quiet(END_SECONDS)
            return self.report(log, time.monotonic() - began)

    def settings(self) -> dict[str, Any]:
        return configured(self.alias)

    def prepare(self) -> None:
        call_command("migrate", database=self.alias, verbosity=0)
        for provider, model in (("openai", GPT), ("anthropic", CLAUDE)):
            Price.objects.using(self.alias).create(
                provider=provider, model=model, input_mtok=Decimal(1), output_mtok=Decimal(2)
            )
        limits = Limit.objects.using(self.alias)
        limits.create(unit="cost", amount=10**9, window="day")
        limits.create(tenant="*", unit="tokens", amount=10**9, window="total")
        limits.create(tenant="*", user="*", unit="calls", amount=10**6, window="hour")
        limits.create(tenant="a", user="u", unit="calls", amount=TIGHT_CALLS, window="total")
        limits.create(tenant="b", user="*", unit="tokens", amount=40_000, window="total")

    def due(self, seconds: float) -> list[Due]:
        number = max(2, int(seconds / OUTAGE_EVERY_SECONDS))
        moments = [seconds * (n + 0.5) / number for n in range(number)]
        return [(at, self.take_away) for at in moments] if self.postgres else []

    def moments(self, end: float, seconds: float) -> Iterator[float]:
        """Every twentieth of a second or so, with what is due now and then, and samples."""
        due = self.due(seconds)
        while (now := time.monotonic()) < end:
            if due and now > end - seconds + due[0][0]:
                due.pop(0)[1]()
            self.sample()
            yield now
            time.sleep(self.chance.uniform(0.02, 0.1))

    def take_away(self) -> None:
        assert self.postgres
        self.postgres.halt(OUTAGES[self.outages % len(OUTAGES)])
        time.sleep(AWAY_SECONDS)
        self.sample()
        self.postgres.resume()
        self.outages += 1

    def sample(self) -> None:
        try:
            self.problems.update(audit.above(TENANTS, USERS))
            self.samples += 1
        except StoreUnavailable:
            self.blind += 1

    def kill_one(self, processes: callers.Callers) -> None:
        pid = self.running.pop(self.chance.randrange(len(self.running)))
        processes.kill(pid)
        self.died_at[pid] = time.time()
        self.killed += 1

    def keep_running(self, processes: callers.Callers, url: str) -> None:
        while len(self.running) < self.processes:
            pid = processes.start(
                kind="call_models", url=url, folder=str(self.folder),
                seed=self.begun,
            )  # fmt: skip
            self.running.append(pid)
            self.begun += 1

    def end(self) -> None:
        """Let who is alive end in order; then let every lease run out."""
        end_in_order(self.running)
        connections.close_all()
        self.age()
        while conf.store().expire(timezone.now(), charge=False):
            pass
        self.sample()

    def age(self) -> None:
        let_pass(conf.store(), LEASE_SECONDS + 1)

    def report(self, log: list[Any], seconds: float) -> dict[str, Any]:
        books = self.books(log)
        self.problems.update(audit.problems(books))
        expired, unsent = books.exposure()
        return {
            "database": connections[self.alias].vendor,
            "seconds": round(seconds, 1),
            "processes": {"begun": self.begun, "killed": self.killed},
            "database restarts": self.outages,
            "calls begun": sum(books.outcomes.values()),
            "calls by outcome": dict(books.outcomes.most_common()),
            "requests at the provider": len(log),
            "ledger rows": sum(books.states().values()),
            "ledger rows by state": dict(books.states().most_common()),
            "exposure (expired, outcome unlearned)": expired,
            "of them never sent": unsent,
            "samples of used + reserved": self.samples,
            "samples without an answer": self.blind,
            **self.figures(books),
            "problems": sorted(self.problems),
        }

    def books(self, log: list[Any]) -> audit.Books:
        return audit.read(self.told(), log, self.alias, self.outages)

    def told(self) -> list[audit.Told]:
        return [self._told(path) for path in sorted(self.folder.glob("*.calls"))]

    def figures(self, books: audit.Books) -> dict[str, Any]:
        """What else there is to report."""
        return {}

    def _told(self, path: Path) -> audit.Told:
        lines = [line.split(" ", 2) for line in path.read_text().splitlines()]
        heard_at = [float(at) for _, at, what in lines if what in HEARD]
        outcomes = {trace: what for trace, _, what in lines}  # the last word of a call counts
        ended = bool(outcomes.pop("-", ""))
        died_at = float(lines[-1][1]) if ended else self.died_at.get(int(path.stem), math.inf)
        return audit.Told(outcomes, ended, died_at, heard_at)


def end_in_order(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + END_SECONDS
    for pid in pids:
        while _is_alive(pid) and time.monotonic() < deadline:
            time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
