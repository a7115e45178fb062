"""Alerts by a real worker and beat on a real Redis: evaluated and sent without this process."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from tests import work
from tests.receivers import Receiver
from tests.tellings import alert, channel, rule
from token_allowance import allowance, tasks
from token_allowance.channels import outbox
from token_allowance.models import Alert, AlertRule, Delivery, Limit

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 90
ANSWER_SECONDS = 60
QUIET_SECONDS = 3
SPEED = 30  # beat evaluates every two seconds, and has messages sent three times a second
ALONE = ("--without-gossip", "--without-mingle", "--without-heartbeat")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().serving() as serving:
        yield serving
        serving.may_answer.set()


@contextmanager
def worker(*options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of two processes on the test database."""
    name = connection.settings_dict["NAME"]
    url = urlsplit(os.environ["DATABASE_URL"])
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDEVMODE"} | {
        "DATABASE_URL": urlunsplit(url._replace(path=f"/{name}")),
        "DJANGO_SETTINGS_MODULE": "tests.work_settings",
        "WORK_QUEUE": work.QUEUE,
        "WORK_SPEED": str(SPEED),
    }
    command = [sys.executable, "-m", "celery", "-A", "tests.work", "worker", "-c", "2", *options]
    process = subprocess.Popen(
        [*command, "-P", "prefork", "-l", "error", *ALONE],
        cwd=ROOT, env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        work.who.delay().get(timeout=START_SECONDS)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        work.hang_up()


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + ANSWER_SECONDS
    while not true():
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.05)


def told(**given: Any) -> None:
    """Write an alert and its deliveries, as an evaluation does. Beat leaves its rule alone."""
    now, left_alone = timezone.now(), rule(kind=AlertRule.Kinds.CHANNEL, name="left alone")
    with transaction.atomic():
        fired = alert(fired_at=now, rule=left_alone, **given)
        outbox.tell(fired, Delivery.Events.FIRED, now)


def spend(tokens: int) -> None:
    with allowance.call(
        provider="openai", model=work.MODEL, input_tokens=tokens, max_output_tokens=0, tenant="acme"
    ) as call:
        call.record(allowance.Usage(tokens))


def rungs(receiver: Receiver) -> list[int]:
    """The rungs of budgets that were told of."""
    found = [json.loads(got.body) for got in list(receiver.received)]
    return [message["rung"] for message in found if message["kind"] == "budget"]


def test_c83_beat_has_budgets_evaluated_and_the_worker_tells_of_each_rung_once(
    receiver: Receiver, tmp_path: Path
) -> None:
    Limit.objects.create(tenant="*", window="total", unit="tokens", amount=100)
    channel(kind="webhook", address=receiver.url)
    with worker("-B", "-s", str(tmp_path / "schedule")):
        spend(75)
        until(lambda: rungs(receiver) == [70])
        spend(25)
        until(lambda: rungs(receiver) == [70, 100])
        time.sleep(QUIET_SECONDS)
    assert rungs(receiver) == [70, 100]
    alerts = Alert.objects.filter(rule__kind="budget").order_by("rung")
    assert list(alerts.values_list("rung", flat=True)) == [70, 100]
    sent = Delivery.objects.filter(alert__in=alerts)
    assert set(sent.values_list("state", "attempts")) == {("sent", 1)}


def test_c86_a_message_is_sent_when_its_alert_commits_and_once_however_often_the_task_runs(
    receiver: Receiver,
) -> None:
    channel(kind="webhook", address=receiver.url)
    with worker():  # and no beat: what is sent was asked for by the commit
        told()
        until(lambda: len(receiver.received) == 1)
        for _ in range(3):
            tasks.deliver.apply_async(task_id="the same")
        told(rung=90)
        until(lambda: len(receiver.received) == 2)
        time.sleep(QUIET_SECONDS)
    assert len({got.headers["webhook-id"] for got in receiver.received}) == 2
    assert len(receiver.received) == 2


def test_c86_a_worker_that_is_killed_between_send_and_mark_costs_one_duplicate(
    receiver: Receiver, tmp_path: Path
) -> None:
    channel(kind="webhook", address=receiver.url)
    receiver.may_answer.clear()
    with worker() as process:
        told()
        until(lambda: len(receiver.received) == 1)  # it has the message, and has not said so
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    receiver.may_answer.set()
    (row,) = Delivery.objects.all()
    assert (row.state, row.attempts) == ("pending", 1)
    older = F("claimed_until") - dt.timedelta(seconds=outbox.CLAIM_SECONDS)
    Delivery.objects.update(claimed_until=older)
    with worker("-B", "-s", str(tmp_path / "schedule")):
        until(lambda: Delivery.objects.get().state == "sent")
        time.sleep(QUIET_SECONDS)
    ids = [got.headers["webhook-id"] for got in receiver.received]
    assert ids == [row.payload["id"]] * 2
