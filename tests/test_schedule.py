"""The recurring work: one list for beat and for ``jobs``, which goes on whatever fails."""

from __future__ import annotations

import datetime as dt
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from tests.receivers import Receiver
from tests.tellings import NOW, alert, channel, rule
from token_allowance import schedule, tasks
from token_allowance.channels import outbox
from token_allowance.management.subcommands import jobs
from token_allowance.models import Delivery, Mark
from token_allowance.prices.bundled import NotInstalled
from token_allowance.schedule import DAY_SECONDS, Job, counted

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).resolve().parents[1]
WAIT_SECONDS = 60


def said(**options: Any) -> str:
    out = io.StringIO()
    call_command("allowance", "jobs", stdout=out, **options)
    return out.getvalue()


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.02)


class Work:
    """A job that counts its rounds and fails, or hangs, when told to."""

    def __init__(self) -> None:
        self.rounds = 0
        self.error: Exception | None = None
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, now: dt.datetime) -> int:
        self.rounds += 1
        self.go_on.wait(WAIT_SECONDS)
        if self.error:
            raise self.error
        return 1

    def job(self, name: str, every_seconds: float = 0.05, *, slow: bool = False) -> Job:
        return Job(name, every_seconds, self, counted("thing", "done"), slow)


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Work]]:
    """Three jobs instead of ours: quick, other and slow."""
    made = {name: Work() for name in ("quick", "other", "slow")}
    listed = tuple(work.job(name, slow=name == "slow") for name, work in made.items())
    monkeypatch.setattr(schedule, "JOBS", listed)
    yield made
    for work in made.values():
        work.go_on.set()


def test_beat_and_jobs_do_the_same() -> None:
    assert [entry["task"] for entry in tasks.BEAT_SCHEDULE.values()] == [
        job.task for job in schedule.JOBS
    ]
    for job in schedule.JOBS:
        task = getattr(tasks, job.name)
        assert (task.name, task.ignore_result) == (job.task, True)
        assert tasks.BEAT_SCHEDULE[job.task]["schedule"] == job.every_seconds


def test_jobs_does_each_once_in_order_and_says_so() -> None:
    channel()
    outbox.tell(alert(rule=rule(kind="channel", name="other")), "fired", NOW)
    lines = said().splitlines()
    names = [line.partition(":")[0] for line in lines]
    assert names == [jobs.label(job) for job in schedule.JOBS]
    build = ["drain", "expire", "fold-spend", "evaluate-alerts", "deliver"]
    assert [name for name in names if name in build] == build  # each on what is before it
    assert "deliver: 1 message sent." in lines
    assert "drill: 0 drills made." in lines


def test_a_daily_job_is_done_once_a_day_by_whichever_process() -> None:
    daily = Job("daily", DAY_SECONDS, Work(), counted("thing", "done"))
    day, hour = dt.timedelta(days=1), dt.timedelta(hours=1)
    moments = (NOW, NOW + hour, NOW + day - hour, NOW + day, NOW + day + hour)
    assert [jobs.is_due(daily, now) for now in moments] == [True, False, False, True, False]
    assert Mark.objects.get(job="jobs.daily").at == NOW + day


def test_a_job_that_fails_stops_no_other_and_is_named(works: dict[str, Work]) -> None:
    works["quick"].error = ValueError("no")
    works["other"].error = NotInstalled("install it")
    with pytest.raises(CommandError, match=r"Failed: quick\.$"):
        said()
    assert [work.rounds for work in works.values()] == [1, 1, 1]
    works["quick"].error = None
    assert said().splitlines() == [
        "quick: 1 thing done.", "other: install it.", "slow: 1 thing done.",
    ]  # fmt: skip


def kept(works: dict[str, Work], until_then: Callable[[list[str]], object]) -> list[str]:
    """What a loop says until something has happened."""
    end, lines = threading.Event(), list[str]()
    thread = threading.Thread(target=jobs.keep, args=(end, lines.append))
    thread.start()
    try:
        until(lambda: until_then(lines))
    finally:
        end.set()
        thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    return lines


def test_the_loop_goes_on_when_a_job_fails_and_tries_it_more_rarely(
    works: dict[str, Work],
) -> None:
    works["quick"].error = ValueError("no")
    lines = kept(works, lambda _: works["quick"].rounds >= 3 and works["other"].rounds >= 6)
    assert lines[0] == "jobs: 3 jobs, until told to end."
    assert lines[-1] == "jobs: ended."
    assert "quick: failed with ValueError: no" in lines
    assert works["quick"].rounds < works["other"].rounds
    assert any(line.endswith("other: 1 thing done.") for line in lines)


def test_a_job_that_waits_for_others_makes_the_ledger_wait_for_nothing(
    works: dict[str, Work],
) -> None:
    works["slow"].go_on.clear()

    def then(_: list[str]) -> bool:
        if works["quick"].rounds < 5:
            return False
        works["slow"].go_on.set()
        return True

    kept(works, then)
    assert works["slow"].rounds == 1


def test_a_drill_that_lasts_delays_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    drill, deliver = Work(), Work()
    both = {"drill": drill, "deliver": deliver}
    listed = tuple(work.job(name, slow=True) for name, work in both.items())
    monkeypatch.setattr(schedule, "JOBS", listed)
    drill.go_on.clear()

    def then(_: list[str]) -> bool:
        if deliver.rounds < 3:
            return False
        drill.go_on.set()
        return True

    kept(both, then)
    assert drill.rounds == 1


def test_a_loop_of_its_own_process_delivers_and_ends_cleanly_when_told() -> None:
    """``manage.py allowance jobs --loop`` on the test database, ended by SIGTERM."""
    url = urlsplit(os.environ["DATABASE_URL"])
    name = connection.settings_dict["NAME"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDEVMODE"} | {
        "DATABASE_URL": urlunsplit(url._replace(path=f"/{name}")),
        "DJANGO_SETTINGS_MODULE": "tests.work_settings",
    }
    with Receiver().serving() as receiver:
        channel(kind="webhook", address=receiver.url)
        outbox.tell(alert(rule=rule(kind="channel", name="other")), "fired", NOW)
        process = subprocess.Popen(
            [sys.executable, "manage.py", "allowance", "jobs", "--loop"],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            until(lambda: Delivery.objects.get().state == "sent")
        finally:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, err
    assert len(receiver.received) == 1
    assert "deliver: 1 message sent." in out
    assert out.splitlines()[-1] == "jobs: ended."
    assert err == ""
