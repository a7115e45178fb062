"""A time of chaos: callers are killed and started, the database is stopped, crashed and started."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
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

    def __init__(self, folder: Path, postgres: Postgres | None, seed: int) -> None:
        self.folder, self.postgres = folder, postgres
        self.alias = "default" if postgres else "sqlite"
        self.chance = random.Random(seed)
        self.running: list[int] = []
        self.begun = self.killed = self.outages = self.samples = self.blind = 0
        self.problems: set[str] = set()

    def run(self, seconds: float) -> dict[str, Any]:
        with (
            override_settings(TOKEN_ALLOWANCE=configured(self.alias)),
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
                self.keep_running(processes, provider.anthropic_url, PROCESSES)
                if now - began > 0.5 and self.chance.random() < 0.3:
                    processes.kill(self.running.pop(self.chance.randrange(PROCESSES)))
                    self.killed += 1
            self.end()
            log = provider.wait_until_quiet(END_SECONDS)
            return self.report(log, time.monotonic() - began)

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

    def moments(self, end: float, seconds: float) -> Iterator[float]:
        """Every twentieth of a second or so, with an outage now and then, and samples."""
        number = max(2, int(seconds / OUTAGE_EVERY_SECONDS))
        due = [end - seconds * (n + 0.5) / number for n in range(number)] if self.postgres else []
        while (now := time.monotonic()) < end:
            if due and now > due[-1]:
                due.pop()
                self.take_away()
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

    def keep_running(self, processes: callers.Callers, url: str, number: int) -> None:
        while len(self.running) < number:
            pid = processes.start(
                kind="call_models", url=url, folder=str(self.folder),
                seed=self.begun,
            )  # fmt: skip
            self.running.append(pid)
            self.begun += 1

    def end(self) -> None:
        """Let who is alive end in order; then let every lease run out."""
        for pid in self.running:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        for pid in self.running:
            while _is_alive(pid) and time.monotonic() < deadline:
                time.sleep(0.01)
        connections.close_all()
        let_pass(conf.store(), LEASE_SECONDS + 1)
        while conf.store().expire(timezone.now(), charge=False):
            pass
        self.sample()

    def report(self, log: list[Any], seconds: float) -> dict[str, Any]:
        told = [_told(path) for path in sorted(self.folder.glob("*.calls"))]
        books = audit.read(told, log, self.alias, self.outages)
        self.problems.update(audit.problems(books, self.alias))
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
            "problems": sorted(self.problems),
        }


def _told(path: Path) -> audit.Told:
    lines = [line.split(" ", 1) for line in path.read_text().splitlines()]
    outcomes = dict(lines)  # the last word of a call counts
    return audit.Told(outcomes, ended=bool(outcomes.pop("-", "")))


def _is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
