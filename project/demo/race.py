"""Two calls of 8 cents at once, when 40 of 50 cents are used: room for one of them."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlencode

from project.demo.people import Person
from project.demo.simulation import RACE_WORD
from token_allowance.models import Reservation

TENANT = "acme"
RACER = re.compile(r"racer-\d{1,6}")
WARM_UP_CALLS = 5  # of 8 cents each
TIMEOUT_SECONDS = 30.0
SHOWN_HEADERS = ("Content-Type", "Retry-After", "x-should-retry")


@dataclass(frozen=True, slots=True)
class Site:
    """Where this server answers, and the CSRF token that a form of it was posted with."""

    port: int
    csrf: str

    def post(self, path: str, fields: dict[str, str]) -> Outcome:
        headers = {
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
            "Cookie": f"csrftoken={self.csrf}",
            "X-CSRFToken": self.csrf,
        }
        connection = HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("POST", path, urlencode(fields), headers)
            response = connection.getresponse()
            shown = {name: response.headers[name] for name in SHOWN_HEADERS}
            body = json.loads(response.read())
        finally:
            connection.close()
        return Outcome(
            response.status, response.reason, {k: v for k, v in shown.items() if v}, body
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """One answer over HTTP."""

    status: int
    reason: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def is_served(self) -> bool:
        return self.status == 200

    @property
    def body_text(self) -> str:
        return json.dumps(self.body, indent=2)

    def as_dict(self) -> dict[str, Any]:
        return {"status": self.status, "headers": self.headers, "body": self.body}


@dataclass(slots=True)
class Race:
    """``outcomes`` are the two calls; empty if a call before them was ``hindered``."""

    racer: Person
    outcomes: list[Outcome] = field(default_factory=list)
    hindered: Outcome | None = None


def next_racer() -> Person:
    """Somebody who has used nothing today: nobody's ledger is cleared for a race."""
    before = Reservation.objects.filter(feature="race").values("user").distinct().count()
    return Person(f"racer-{before + 1}", TENANT)


def run(site: Site, path: str, racer: Person) -> Race:
    """Spend 40 cents in calls one after another, then send two at the same moment."""
    race = Race(racer)
    for _ in range(WARM_UP_CALLS):
        outcome = site.post(path, {"racer": racer.user, "question": "warm up"})
        if not outcome.is_served:
            race.hindered = outcome
            return race
    start = threading.Barrier(2, timeout=TIMEOUT_SECONDS)
    failures: list[BaseException] = []

    def call() -> None:
        try:
            start.wait()
            outcome = site.post(path, {"racer": racer.user, "question": RACE_WORD})
            race.outcomes.append(outcome)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=call, name=f"race-{n}") for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    race.outcomes.sort(key=lambda outcome: outcome.status)
    return race
