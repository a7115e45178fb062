"""Processes that send the same alerts at once, and one that is killed before it can say so."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from django.db import connections

from tests.receivers import Receiver
from tests.tellings import NOW, alert, channel
from token_allowance.channels import outbox
from token_allowance.models import Delivery

PROCESSES = 4
MESSAGES = 24
LATER = NOW + dt.timedelta(seconds=outbox.CLAIM_SECONDS + 1)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().serving() as serving:
        yield serving


def begun(using: str, *, killed: bool = False) -> subprocess.Popen[str]:
    """A process that is ready to deliver, as soon as it gets another line."""
    names = {alias: str(connections[alias].settings_dict["NAME"]) for alias in connections}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.delivering"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "PYTHONDEVMODE"},
    )
    told = {"databases": names, "using": using, "now": NOW.isoformat(), "killed": killed}
    assert process.stdin
    process.stdin.write(json.dumps(told) + "\n")
    process.stdin.flush()
    return process


def run(*processes: subprocess.Popen[str]) -> list[str]:
    """What each said when all had been let go at once."""
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    return [process.communicate(timeout=60)[0].strip() for process in processes]


def test_c86_a_sender_that_is_killed_before_it_noted_the_message_costs_one_duplicate(
    database: str, receiver: Receiver, settings: object
) -> None:
    settings.TOKEN_ALLOWANCE |= {"WEBHOOK_ALLOWED": ["127.0.0.0/8"]}  # type: ignore[attr-defined]
    channel(database, "webhook", address=receiver.url)
    outbox.tell(alert(database), "fired", NOW)
    process = begun(database, killed=True)
    assert run(process) == [""]
    assert process.returncode == -signal.SIGKILL
    assert len(receiver.received) == 1
    (row,) = Delivery.objects.using(database)
    assert (row.state, row.attempts) == ("pending", 1)
    assert outbox.deliver(NOW) == 0  # somebody may still be at it
    assert [outbox.deliver(LATER) for _ in range(3)] == [1, 0, 0]
    ids = [got.headers["webhook-id"] for got in receiver.received]
    assert ids == [row.payload["id"]] * 2


@pytest.mark.parametrize("database", ["postgresql", "sqlite"], indirect=True)
def test_c84_senders_at_once_send_each_message_once(database: str, receiver: Receiver) -> None:
    channel(database, "webhook", address=receiver.url)
    for number in range(MESSAGES):
        outbox.tell(alert(database, target=str(number)), "fired", NOW)
    said = run(*(begun(database) for _ in range(PROCESSES)))
    assert sum(map(int, said)) == MESSAGES
    ids = Counter(got.headers["webhook-id"] for got in receiver.received)
    assert len(ids) == MESSAGES
    assert set(ids.values()) == {1}
    rows = Delivery.objects.using(database)
    assert rows.filter(state="sent", attempts=1).count() == MESSAGES
