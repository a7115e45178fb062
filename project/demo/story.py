"""The story of the page without a browser: everything that a visitor may try, and what came of it.

Each step goes through the real page over HTTP, and each model call to the simulated provider.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import connection
from django.utils import timezone

from project.demo import control
from project.demo.control import Stopped
from project.demo.visitor import Answer, Visitor
from project.provider import Provider
from token_allowance import conf
from token_allowance.counters import budget_of
from token_allowance.models import Counter, Limit, Reservation

MOST_QUESTIONS = 12
SAMPLE_SECONDS = 0.005
MIDNIGHT_SECONDS = 45  # the story must not straddle the end of a day


@dataclass(slots=True)
class Figures:
    """What the promises are judged by. Amounts are micro-dollars."""

    page: Answer | None = None
    chat: list[Answer] = field(default_factory=list)
    chat_reached: int = 0
    refused_at: dt.datetime | None = None
    day_ends_at: dt.datetime | None = None
    streamed: Answer | None = None
    agent: dict[str, Any] = field(default_factory=dict)
    agent_reached: int = 0
    climb: dict[str, Any] = field(default_factory=dict)
    climb_reached: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    stopped: Stopped = field(default_factory=Stopped)
    race: list[dict[str, Any]] = field(default_factory=list)
    race_reached: int = 0
    user_budget: int = 0
    peaks: dict[str, int] = field(default_factory=dict)
    samples: int = 0
    reached: int = 0
    states: list[str] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    reserved_left: int = 0
    drifts: list[str] = field(default_factory=list)


class Peaks:
    """The most that was ever used and reserved of each user's budget, seen from outside."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self.samples = 0

    def look(self) -> None:
        for key, used, reserved in Counter.objects.values_list("key", "used", "reserved"):
            if budget_of(key).limit.scope == "user":
                self.seen[key] = max(self.seen.get(key, 0), used + reserved)
        self.samples += 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        done = threading.Event()

        def watch() -> None:
            try:
                while not done.wait(SAMPLE_SECONDS):
                    self.look()
            finally:
                connection.close()

        thread = threading.Thread(target=watch, name="demo-peaks")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self.look()


def play(url: str, provider: Provider) -> Figures:
    """Play it all on an empty ledger. Raises OSError if the page cannot be reached."""
    made, peaks = Figures(), Peaks()
    made.user_budget = Limit.objects.get(user="*", unit="cost").amount
    with peaks.watching():
        visitor = Visitor(url)
        made.page = visitor.page
        _chat(visitor, provider, made)
        made.streamed = visitor.post(
            "/chat/", "text/html", user="ben", offer="anthropic", question="And streamed?"
        )
        before = provider.totals().received
        made.agent = visitor.post("/agent/", user="cleo", offer="openai").document
        made.agent_reached = provider.totals().received - before
        made.climb = visitor.post("/climb/", user="dan").document
        made.climb_reached = [
            entry.model for entry in provider.log()[before + made.agent_reached :]
        ]
        made.told = control.told()
        made.stopped = control.stopped(visitor, provider)
        before = provider.totals().received
        made.race = visitor.post("/race/", user="ana").document.get("outcomes", [])
        made.race_reached = provider.totals().received - before
        provider.wait_until_quiet()
    made.peaks, made.samples = peaks.seen, peaks.samples
    _read_ledger(provider, made)
    return made


def wait_for_a_whole_day() -> None:
    """Just before midnight, wait until it has passed."""
    now = timezone.now()
    left = (_day_after(now) - now).total_seconds()
    if left < MIDNIGHT_SECONDS:
        time.sleep(left + 1)


def _chat(visitor: Visitor, provider: Provider, made: Figures) -> None:
    """Ask until refused, then once more through the other SDK."""
    for _ in range(MOST_QUESTIONS):
        made.refused_at = timezone.now()
        made.chat.append(visitor.post("/chat/", user="ana", offer="openai", question="Go on."))
        if made.chat[-1].status != 200:
            break
    made.day_ends_at = _day_after(made.refused_at or timezone.now())
    made.chat.append(visitor.post("/chat/", user="ana", offer="anthropic", question="Go on."))
    made.chat_reached = provider.totals().received


def _read_ledger(provider: Provider, made: Figures) -> None:
    made.reached = provider.totals().received
    for state, request_id in Reservation.objects.values_list("state", "provider_request_id"):
        made.states.append(state)
        made.request_ids.append(request_id)
    made.reserved_left = sum(Counter.objects.values_list("reserved", flat=True))
    made.drifts = [drift.key for drift in conf.store().rebuild(timezone.now())]


def _day_after(moment: dt.datetime) -> dt.datetime:
    zone = timezone.get_default_timezone()
    day = moment.astimezone(zone).date() + dt.timedelta(days=1)
    return dt.datetime.combine(day, dt.time(), zone).astimezone(dt.UTC)
