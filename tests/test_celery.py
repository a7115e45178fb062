"""A real Celery worker on a real Redis: what it runs is charged like what set it off (case C80)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from celery import chain, chord, group, signals
from celery.result import AsyncResult
from django.db import connection
from django.utils import timezone

from project.celery import app
from tests import work
from token_allowance import allowance, conf, jobs
from token_allowance.models import Limit, Price, Reservation

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 90
ANSWER_SECONDS = 30
CELERY = (sys.executable, "-m", "celery", "-A", "tests.work", "worker")
ALONE = ("--without-gossip", "--without-mingle", "--without-heartbeat")


@pytest.fixture(scope="module")
def worker(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """One worker with one process, on the test database."""
    with django_db_blocker.unblock():
        name = connection.settings_dict["NAME"]
    url = urlsplit(os.environ["DATABASE_URL"])
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDEVMODE"} | {
        "DATABASE_URL": urlunsplit(url._replace(path=f"/{name}")),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "WORK_QUEUE": work.QUEUE,
    }
    process = subprocess.Popen(
        [*CELERY, "-P", "prefork", "-c", "1", "-l", "error", *ALONE],
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    )
    try:
        work.who.delay().get(timeout=START_SECONDS)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        work.hang_up()


@pytest.fixture(autouse=True)
def prices(worker: None, db: None) -> None:
    Price.objects.create(
        provider="openai", model=work.MODEL, input_mtok=Decimal(1), output_mtok=Decimal(2)
    )


def answer(result: AsyncResult) -> Any:
    return result.get(timeout=ANSWER_SECONDS)


def payers() -> Counter[tuple[str, str]]:
    """How many rows each tenant and user has."""
    return Counter(Reservation.objects.values_list("tenant", "user"))


def test_a_task_is_charged_like_its_caller_and_the_next_one_like_its_own():
    for user in ("42", "43"):
        with allowance.charge_to(tenant="7", user=user, trace_id=f"trace-{user}"):
            assert answer(work.who.delay()) == ["7", user, "", "", f"trace-{user}"]
    assert answer(work.who.delay()) == [""] * 5


def test_the_task_itself_has_the_last_word():
    with allowance.charge_to(tenant="7", user="42"):
        assert answer(work.named.delay("ann")) == ["7", "ann", "", "digest", ""]
    assert payers() == {("7", "ann"): 1}


def test_retries_chains_and_chords_keep_the_charge():
    with allowance.charge_to(tenant="7", user="42"):
        retried = work.stubborn.delay()
        chained = chain(work.spent.si(1), work.spent.si(1)).delay()
        header = group(work.spent.si(1) for _ in range(2))
        gathered = chord(header)(work.gathered.s())
    assert answer(retried) == answer(chained) == [1, ""]
    assert answer(gathered) == [[[1, ""]] * 2, [1, ""]]
    assert payers() == {("7", "42"): 3 + 2 + 3}


def test_a_header_that_was_not_signed_here_is_nobodys():
    Limit.objects.create(tenant="*", window="day", unit="calls", amount=9)
    with allowance.charge_to(tenant="7"):
        headers = {"id": "another"}
        jobs.write(headers=headers)
        good = headers[jobs.HEADER]
    for forged in (good, good[:-1] + ("x" if good[-1] != "x" else "y"), "tenant=7", None):

        def forge(headers: dict[str, Any], forged: str | None = forged, **_: Any) -> None:
            headers[jobs.HEADER] = forged

        signals.before_task_publish.connect(forge)  # after ours
        try:
            sent = work.spent.delay()
        finally:
            signals.before_task_publish.disconnect(forge)
        assert answer(sent) == [0, "unattributed"]
    assert not Reservation.objects.exists()


def test_c40_a_cap_of_calls_is_shared_by_parent_and_child():
    with allowance.charge_to(tenant="7", max_calls=10):
        assert work.spend(4) == [4, ""]
        assert answer(work.spent.delay(5)) == [5, ""]
        assert answer(work.spent.delay(2)) == [1, "per_request_calls_exceeded"]
        assert work.spend() == [0, "per_request_calls_exceeded"]
    assert payers() == {("7", ""): 10}
    assert conf.store().rebuild(timezone.now()) == []


def test_a_cap_of_dollars_is_shared_by_parent_child_and_grandchild():
    with allowance.charge_to(tenant="7", max_cost="0.000100"):
        grandchild = AsyncResult(answer(work.parent.delay(3, 4)), app=app)
        assert answer(grandchild) == [4, ""]
        assert work.spend(4) == [3, "per_request_cost_exceeded"]
        assert answer(work.spent.delay(1)) == [0, "per_request_cost_exceeded"]
    assert payers() == {("7", ""): 10}


def test_a_task_whose_worker_is_killed_counts_on_in_its_next_attempt():
    with allowance.charge_to(tenant="7"):
        first, second = work.killed.delay(), work.killed.delay()
    assert answer(first) == answer(second) == [1, "per_request_calls_exceeded"]
    rows = Reservation.objects.filter(tenant="7", feature="fragile", state="settled")
    assert rows.count() == len({row.id for row in rows}) == 6
    assert conf.store().rebuild(timezone.now()) == []


def test_a_task_that_is_delivered_twice_pays_once_under_its_own_key():
    with allowance.charge_to(tenant="7"):
        assert answer(work.paid_once.delay()) == [1, ""]
    (row,) = Reservation.objects.all()
    assert (row.state, row.cost_micros, row.flags) == ("settled", 10, [])


def test_c96_queued_tasks_are_refused_when_they_run():
    with allowance.charge_to(tenant="7", feature="agent"):
        before = work.spent.delay()
        assert answer(before) == [1, ""]
        assert app.control.cancel_consumer(work.QUEUE, reply=True, timeout=ANSWER_SECONDS, limit=1)
        queued = [work.spent.delay() for _ in range(1000)]
    allowance.engage("feature:agent", reason="drill", by="ana")
    assert app.control.add_consumer(work.QUEUE, reply=True, timeout=ANSWER_SECONDS, limit=1)
    assert all(answer(one) == [0, "switch_engaged"] for one in queued)
    allowance.disengage("feature:agent", by="ana")
    assert Reservation.objects.count() == 1
