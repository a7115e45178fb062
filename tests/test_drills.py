"""Drills of the kill switch: real processes, real calls, a real switch."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command
from django.db import connections
from django.db.models import Sum
from django.utils import timezone

from tests.metering import within
from token_allowance import allowance, conf, drills
from token_allowance.alerts import switch_events
from token_allowance.drill_record import claim, due, overdue
from token_allowance.drills import clients, drill, probe, probes
from token_allowance.drills.endpoint import Endpoint
from token_allowance.drills.figures import Call, Figures, Moments, measured
from token_allowance.entries import new_id
from token_allowance.models import AlertRule, Drill, Limit, Refusal, Reservation, Switch, Tenant
from token_allowance.stops import SwitchRule

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 2
QUICK = ("--seconds", str(SECONDS), "--by", "ana")
one_database = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
COMMAND = ("-m", "django", "allowance", "drill")
#: As a worker of Celery's pool: a daemon, which may have no children by multiprocessing.
WORKER = """
import multiprocessing, django

def work():
    django.setup()
    from django.utils import timezone
    from token_allowance import drills
    print("due:", drills.run_due(timezone.now()).passed, flush=True)
    print("again:", drills.run_due(timezone.now()), flush=True)

process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
process.start()
process.join()
"""
Driller = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def driller(database: str, settings: LazySettings) -> Iterator[Driller]:
    """Start ``manage.py allowance drill`` in a process, with the database and store of the test."""
    started: list[subprocess.Popen[str]] = []

    def start(
        *words: str, apps: tuple[str, ...] = (), program: tuple[str, ...] = COMMAND
    ) -> subprocess.Popen[str]:
        given = {
            "databases": {a: str(connections[a].settings_dict["NAME"]) for a in connections},
            "settings": settings.TOKEN_ALLOWANCE,
            "apps": apps,
        }
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDEVMODE"}  # it is slow
        environment |= {
            "DJANGO_SETTINGS_MODULE": "tests.drill_settings",
            "DRILL_SETTINGS": json.dumps(given),
            "PYTHONUNBUFFERED": "1",
        }
        process = subprocess.Popen(
            [sys.executable, *program, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def drilled(driller: Driller, *words: str, **given: Any) -> tuple[int, str]:
    """A whole drill: exit status and what it said."""
    process = driller(*words, **given)
    said, _ = process.communicate(timeout=120)
    return process.returncode, said


def switches(database: str) -> int:
    """How many are engaged now."""
    return Switch.objects.using(database).filter(released_at=None).count()


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(number) for number in path.read_text().split()]


def gone(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_drill_of_a_tenant_passes_over_four_processes_and_is_recorded(
    database: str, driller: Driller
) -> None:
    Limit.objects.using(database).create(tenant="*", unit="cost", amount=1, window="total")
    Limit.objects.using(database).create(user="*", unit="calls", amount=20, window="total")
    status, said = drilled(driller, "--tenant", "internal", *QUICK)
    assert status == 0, said
    drill = Drill.objects.using(database).get()
    assert drill.passed is True
    assert (drill.tenant, drill.feature, drill.percent, drill.by) == ("internal", "", 100, "ana")
    assert drill.codes == {"switch_engaged": drill.callers}
    assert drill.attempts == drill.callers >= 8
    assert drill.admitted_after == drill.last_admission_ms == 0
    assert drill.effect_ms is not None
    assert drill.effect_ms <= drill.slo_ms == 5_000
    assert f"First refusal after: {drill.effect_ms:,} ms" in said
    assert "through openai" in said
    assert switches(database) == 0
    conf.store().drain()
    rows = Reservation.objects.using(database).filter(trace_id__startswith=f"drill-{drill.pk}-")
    assert rows.count() == drill.calls - drill.callers < 60
    assert set(rows.values_list("tenant", "feature", "provider", "cost_micros")) == {
        ("internal", "drill", "drill", 0)
    }


@one_database
def test_a_drill_of_a_part_of_a_feature_serves_everybody_else(
    database: str, driller: Driller
) -> None:
    words = ("--feature", "agent", "--percent", "10", "--processes", "2", *QUICK)
    status, said = drilled(driller, *words)
    assert status == 0, said
    assert "10 % of the callers of feature agent" in said
    conf.store().drain()
    drill = Drill.objects.using(database).get()
    assert (drill.feature, drill.percent, drill.passed) == ("agent", 10, True)
    served = Reservation.objects.using(database).values_list("user", flat=True)
    assert len(set(served)) == 8
    counted = Refusal.objects.using(database).filter(code="switch_engaged", feature="agent")
    assert counted.aggregate(Sum("calls"))["calls__sum"] == drill.callers
    assert set(counted.values_list("key", flat=True)) == {"feature=agent"}
    stopped = set(counted.values_list("user", flat=True))
    assert len(stopped) == 4
    assert stopped < set(served)


@one_database
def test_a_worker_runs_the_drill_that_the_setting_names(
    database: str, driller: Driller, settings: LazySettings
) -> None:
    chosen = {"tenant": "internal", "processes": 2, "seconds": 0.5}
    settings.TOKEN_ALLOWANCE = {**settings.TOKEN_ALLOWANCE, "DRILL": chosen}
    status, said = drilled(driller, program=("-c", WORKER))
    assert (status, said.splitlines()[-2:]) == (0, ["due: True", "again: None"]), said
    record = Drill.objects.using(database).get()
    assert (record.tenant, record.by, record.passed) == ("internal", "schedule", True)


@one_database
def test_a_switch_that_processes_do_not_hear_of_fails_its_drill(
    database: str, driller: Driller
) -> None:
    words = ("--tenant", "internal", "--processes", "2", "--slo", "0.5", *QUICK)
    status, said = drilled(driller, *words, apps=("tests.deaf.Deaf",))
    assert status == 1, said
    assert "failed: no call was refused; a call was still admitted after" in said
    drill = Drill.objects.using(database).get()
    assert drill.passed is False
    assert drill.effect_ms is None
    assert drill.admitted_after > 0
    assert drill.last_admission_ms is not None
    assert drill.last_admission_ms > 500
    assert switches(database) == 0


@one_database
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_an_interrupted_drill_releases_its_switch(
    database: str, driller: Driller, number: signal.Signals
) -> None:
    process = driller("--tenant", "internal", "--processes", "1", "--seconds", "60", "--by", "ana")
    assert within(lambda: switches(database) == 1, 90)
    process.send_signal(number)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "Interrupted" in said
    switch = Switch.objects.using(database).get()
    assert switch.released_at is not None
    assert [event.action for event in switch.events.all()] == ["engaged", "released"]
    drill = Drill.objects.using(database).get()
    assert (drill.passed, drill.error) == (None, "interrupted")
    assert drill.finished_at is not None


@one_database
def test_a_killed_driller_leaves_no_process_and_a_switch_that_ends_by_itself(
    database: str, driller: Driller
) -> None:
    words = ("--tenant", "internal", "--processes", "2", "--seconds", "1", "--by", "ana")
    process = driller(*words)
    assert within(lambda: switches(database) == 1, 90)
    pids = children(process.pid)
    process.kill()
    process.wait()
    assert len(pids) == 2
    with pytest.raises(allowance.SwitchEngaged):
        call()
    assert within(lambda: all(gone(pid) for pid in pids), 30)
    (switch,) = Switch.objects.using(database).filter(released_at=None)
    assert switch.ends_at is not None
    left = (switch.ends_at - timezone.now()).total_seconds()
    assert left < 1 + drill.GRACE_SECONDS
    time.sleep(max(0.0, left) + 0.1)
    call()


def call() -> None:
    with allowance.call(
        provider="openai", model="m", input_tokens=1, tenant="internal", user="ana"
    ) as made:
        made.release()


def plan(**given: Any) -> drills.Plan:
    return drills.planned(**{"tenant": "internal", "processes": 1, "by": "ana", **given})


@pytest.mark.parametrize("words", [(), ("--seconds", "5")])
@pytest.mark.django_db
def test_everything_is_never_drilled(words: tuple[str, ...]) -> None:
    with pytest.raises(CommandError, match="everything is never drilled"):
        call_command("allowance", "drill", *words)


@pytest.mark.parametrize(
    "target",
    [{"tenant": "internal"}, {"everything": True}, {"feature": "drill"}, {"model": "drill"}],
)
@pytest.mark.django_db(transaction=True)
def test_a_target_that_is_stopped_already_is_not_drilled(target: dict[str, Any]) -> None:
    allowance.engage(**target, reason="runaway loop", by="bob", percent=100)
    with pytest.raises(CommandError, match=r"Cannot drill: a switch is engaged .* runaway loop"):
        call_command("allowance", "drill", "--tenant", "internal")
    assert Switch.objects.get().released_at is None
    assert not Drill.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_what_only_observes_cannot_be_drilled(settings: LazySettings) -> None:
    Tenant.objects.create(key="internal", mode="observe")
    with pytest.raises(drills.CannotDrill, match="only observed"):
        drills.run(plan())
    settings.TOKEN_ALLOWANCE = {"MODE": "observe"}
    with pytest.raises(drills.CannotDrill, match="only observed"):
        drills.run(plan(tenant="other"))


@pytest.mark.django_db(transaction=True)
def test_a_stop_that_somebody_pulls_during_a_drill_outlives_it() -> None:
    said: list[str] = []
    record = Drill.objects.create(tenant="internal", processes=1, by="ana", slo_ms=1)
    with drill.engaged(plan(), record, said.append):
        with pytest.raises(allowance.SwitchEngaged):
            call()
        allowance.engage(tenant="internal", reason="a real loop", by="bob")
    assert "somebody has engaged it anew" in said[0]
    with pytest.raises(allowance.SwitchEngaged, match="a real loop"):
        call()
    with (
        pytest.raises(drills.CannotDrill, match="engaged already"),
        drill.engaged(plan(), record, said.append),
    ):
        raise AssertionError("it must not replace the stop")
    assert Switch.objects.get().reason == "a real loop"
    assert len(said) == 1


@pytest.mark.django_db(transaction=True)
def test_a_drill_is_told_of_and_wakes_nobody() -> None:
    rule = AlertRule.objects.create(kind="switch", name="switch", severity="critical")
    record = Drill.objects.create(tenant="internal", processes=1, by="ana", slo_ms=1)
    with drill.engaged(plan(), record, print):
        pass
    allowance.engage(tenant="internal", reason="drill 9, no: a real loop", by="bob")
    found = {
        f.title.partition(".")[0]: f.severity for f in switch_events.find(rule, timezone.now())
    }
    assert found == {
        f"internal by ana: drill {record.pk}, ends by itself": "info",
        "internal by bob: drill 9, no: a real loop": None,
    }


@pytest.mark.parametrize("tries", [1, 3])
@pytest.mark.django_db(transaction=True)
def test_a_client_that_tries_again_is_found_out(tries: int) -> None:
    """The probe counts what was really asked of the budgets, not what its caller saw."""
    allowance.engage(tenant="internal", reason="loop", by="ana")

    def ask() -> None:
        for left in reversed(range(tries)):
            try:
                call()
            except allowance.SwitchEngaged:
                if not left:
                    raise

    caller = {"tenant": "internal", "user": "drill-1", "stopped": True}
    told = probe.call(ask, caller, "drill-1-1")
    assert (told["code"], told["attempts"]) == ("switch_engaged", tries)
    assert told["began"] < told["ended"]


MS = 1_000_000
MOMENTS = Moments(pulled=1_000 * MS, engaged=1_010 * MS, let_go=3_000 * MS, released=3_010 * MS)


def made(began_ms: int, code: str = "", process: int = 0, **given: Any) -> Call:
    row = {"user": "drill-1", "stopped": True, "attempts": 1, **given}
    return Call(process=process, began=began_ms * MS, ended=(began_ms + 5) * MS, code=code, **row)


def good() -> list[Call]:
    served = [made(ms, process=p) for p in (0, 1) for ms in (500, 995, 3_020)]
    return served + [made(1_020, "switch_engaged", p) for p in (0, 1)]


def judged(calls: list[Call], reached: int | None = None) -> Figures:
    admitted = sum(not call.code for call in calls)
    return measured(calls, MOMENTS, 2, 1_000, admitted if reached is None else reached)


def test_a_good_drill_has_no_failure() -> None:
    found = judged(good())
    assert found.failures == ()
    assert (found.effect_ms, found.everywhere_ms, found.restored_ms) == (25, 25, 25)
    assert (found.calls, found.callers, found.attempts) == (8, 2, 2)
    assert (found.admitted_after, found.last_admission_ms) == (0, 0)


@pytest.mark.parametrize(
    ("changed", "failure"),
    [
        ([c for c in good() if not c.code], "no call was refused"),
        ([c for c in good() if not (c.code and c.process)], "not all of 2 processes refused"),
        ([*good()[:-1], made(2_500, "switch_engaged", 1)], "only after 1,505 ms"),
        ([*good(), made(2_100)], "still admitted after 1,105 ms"),
        ([*good(), made(1_500, "store_unavailable")], "another code .* store_unavailable"),
        ([*good(), made(1_500, "switch_engaged", attempts=3)], "3 refused .* 5 times: retries"),
        ([*good(), made(1_500, "switch_engaged", stopped=False)], "1 calls that it does not stop"),
        ([c for c in good() if c.began < 3_000 * MS], "not all processes served a call again"),
    ],
)
def test_each_thing_that_may_go_wrong_fails_the_drill(changed: list[Call], failure: str) -> None:
    found = judged(changed)
    assert not found.passed
    assert re.search(failure, "; ".join(found.failures))


def test_a_call_that_reaches_the_model_without_being_admitted_fails_the_drill() -> None:
    assert "7 calls came to the model" in judged(good(), reached=7).failures[0]


def test_an_admission_within_the_slo_is_counted_and_passes() -> None:
    found = judged([*good(), made(1_500)])
    assert (found.passed, found.admitted_after, found.last_admission_ms) == (True, 1, 505)


def test_a_call_that_is_still_under_way_at_the_release_may_be_let_through_by_it() -> None:
    assert judged([*good(), made(2_998)]).admitted_after == 0


@pytest.mark.parametrize("percent", [1, 50, 99])
def test_of_a_part_both_kinds_of_callers_are_made_up(percent: int) -> None:
    each = drills.Plan(feature="agent", percent=percent, processes=3).callers()
    assert [[caller.stopped for caller in callers] for callers in each] == 3 * [
        [True, True, False, False]
    ]
    switch = SwitchRule((("feature", "agent"),), "drill", None, percent)
    everybody = [caller for callers in each for caller in callers]
    assert all(switch.stops(c.values, timezone.now()) == c.stopped for c in everybody)
    assert len({caller.user for caller in everybody}) == 12


def test_a_plan_follows_the_setting_until_told_otherwise(settings: LazySettings) -> None:
    settings.TOKEN_ALLOWANCE = {"DRILL": {"feature": "agent", "percent": 5, "slo_seconds": 2}}
    found = drills.planned()
    assert (found.target, found.percent, found.slo_seconds) == ({"feature": "agent"}, 5, 2)
    found = drills.planned(tenant="internal", seconds=3)
    assert (found.target, found.percent, found.seconds) == ({"tenant": "internal"}, 100, 3)
    assert drills.planned(feature="chat").percent == 1


@pytest.mark.parametrize(
    "wrong",
    [{"percent": 0}, {"percent": 101}, {"processes": 0}, {"seconds": 0}, {"seconds": float("nan")},
     {"slo_seconds": float("inf")}, {"tenant": "*"}, {"feature": "a\x00b"}],
    ids=str,
)  # fmt: skip
@pytest.mark.django_db
def test_what_cannot_be_drilled_is_a_sentence(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is not from|not a value|control character"):
        plan(**wrong)


@pytest.mark.django_db(transaction=True)
def test_a_host_s_test_run_does_not_drill_its_real_database() -> None:
    with pytest.raises(drills.CannotDrill, match="test run"):
        drills.run(plan())
    assert not Drill.objects.exists()
    assert not Switch.objects.exists()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"tenat": "x"}, "did you mean 'tenant'"),
        ({"tenant": 7}, "must be text"),
        ({"percent": 0}, "from 1 to 100"),
        ({"processes": None}, "from 1 to 100"),
        ({"slo_seconds": 0}, "above 0"),
        ("internal", "must be a dict"),
    ],
)
def test_a_wrong_setting_is_told(given: Any, problem: str) -> None:
    (found,) = conf.problems({"DRILL": given})
    assert "['DRILL']" in found
    assert problem in found
    assert conf.problems({"DRILL": {"tenant": "internal", "percent": None}}) == []


NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)


def before(days: float, passed: bool | None = True) -> Drill:
    at = NOW - dt.timedelta(days=days)
    return Drill.objects.create(
        tenant="internal", processes=4, by="ana", slo_ms=1, started_at=at, passed=passed
    )


@pytest.mark.django_db
def test_a_drill_is_overdue_after_its_days_or_when_none_was_made_for_that_long() -> None:
    assert not overdue(NOW)  # nobody calls: nothing to stop
    Reservation.objects.create(
        id=new_id(), state="settled", created_at=NOW - dt.timedelta(days=29), expires_at=NOW
    )
    assert not overdue(NOW)
    Reservation.objects.update(created_at=NOW - dt.timedelta(days=31))
    assert overdue(NOW)
    before(31)
    assert overdue(NOW)
    before(1, passed=None)
    assert overdue(NOW)
    before(29, passed=False)
    assert not overdue(NOW)


@pytest.mark.django_db
def test_a_drill_is_due_when_the_last_is_old_and_a_target_is_set(settings: LazySettings) -> None:
    assert not due(NOW)
    settings.TOKEN_ALLOWANCE = {"DRILL": {"tenant": "internal", "every_days": 3}}
    assert due(NOW)
    before(2.9)
    assert not due(NOW)
    assert due(NOW + dt.timedelta(hours=3))


def test_of_many_workers_one_runs_the_drill_that_is_due(
    database: str, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TOKEN_ALLOWANCE = {**settings.TOKEN_ALLOWANCE, "DRILL": {"tenant": "internal"}}
    ran: list[drills.Plan] = []

    def run(plan: drills.Plan) -> Drill:
        ran.append(plan)
        return Drill(passed=True)

    monkeypatch.setattr(drills, "run", run)

    def work(_: int) -> bool:
        try:
            return drills.run_due(NOW) is not None
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as workers:
        assert sum(workers.map(work, range(8))) == 1
    assert [(found.tenant, found.by) for found in ran] == [("internal", "schedule")]
    assert drills.run_due(NOW + dt.timedelta(hours=23)) is None
    assert drills.run_due(NOW + dt.timedelta(hours=25)) is not None  # no record came of the first


@pytest.mark.django_db(transaction=True)
def test_a_drill_that_is_due_and_cannot_be_made_is_told_and_not_raised(
    settings: LazySettings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.TOKEN_ALLOWANCE = {"DRILL": {"tenant": "internal"}}
    allowance.engage(tenant="internal", reason="loop", by="bob")
    assert drills.run_due(timezone.now()) is None
    assert "cannot be made: a switch is engaged" in caplog.text
    assert claim(timezone.now()) is False


def test_the_endpoint_answers_on_loopback_and_counts() -> None:
    with Endpoint() as endpoint, httpx2.Client(trust_env=False) as client:
        assert endpoint.url.startswith("http://127.0.0.1:")
        for _ in range(2):
            answer = client.post(f"{endpoint.url}/v1/chat/completions", json={"model": "drill"})
            assert answer.json()["usage"]["total_tokens"] == 2
        assert client.post(endpoint.url, content=b"x" * 70_000).status_code == 413
        assert endpoint.calls == 2


def told(*words: str) -> str:
    out = StringIO()
    with suppress(CommandError):  # doctor may find other problems
        call_command("allowance", *words, stdout=out)
    return out.getvalue()


@pytest.mark.django_db(transaction=True)
def test_status_and_doctor_say_when_the_last_drill_was_and_how_it_went() -> None:
    assert "warning  The kill switch was never drilled" in told("doctor")
    assert "Drill: The kill switch was never drilled" in told("status")
    row = {"tenant": "internal", "processes": 4, "by": "ana", "slo_ms": 5_000, "effect_ms": 1_234}
    now = timezone.now()
    Drill.objects.create(**row, passed=True, started_at=now - dt.timedelta(days=40))
    assert "passed, first refusal after 1,234 ms; that is more than 30 days ago" in told("doctor")
    Drill.objects.create(**row, passed=True, started_at=now - dt.timedelta(days=20))
    assert "ok       The drill of " in told("doctor")
    Drill.objects.create(**row, passed=False, error="no call was refused", started_at=now)
    assert "problem  The drill of " in told("doctor")
    assert "(tenant internal) failed, first refusal after 1,234 ms: no call was" in told("status")


@pytest.mark.parametrize("name", ["openai", "httpx2", "httpx", "allowance.call"])
@pytest.mark.django_db(transaction=True)
def test_a_probe_calls_with_what_is_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "find_spec", lambda wanted: wanted == name)
    Limit.objects.create(unit="cost", amount=1, window="total")
    drill.price()
    caller = {"tenant": "internal", "user": "drill-1", "stopped": True}
    with Endpoint() as endpoint, clients.client(endpoint.url) as (chosen, ask):
        assert probe.call(ask, caller, "drill-1-1")["code"] == ""
        allowance.engage(tenant="internal", reason="loop", by="ana")
        told = probe.call(ask, caller, "drill-1-2")
        assert (chosen, told["code"], told["attempts"]) == (name, "switch_engaged", 1)
        assert endpoint.calls == (name != "allowance.call")
    row = Reservation.objects.get()
    assert (row.trace_id, row.state, row.cost_micros) == ("drill-1-1", "settled", 0)
    assert (row.provider, row.model, row.input_tokens, row.output_tokens) == (
        "drill",
        "drill",
        1,
        1,
    )


def test_what_a_host_project_prints_is_not_taken_for_a_probe_s_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that ends is told with its last words, and none is left."""
    monkeypatch.setattr(probes, "python", lambda: str(ROOT / "tests" / "chatty"))
    monkeypatch.setattr(probes, "in_tests", lambda: False)
    with (
        pytest.raises(drills.CannotDrill, match=r"status 3: .*no such table"),
        probes.Probes(plan(processes=2), "http://127.0.0.1:1", "drill-1") as started,
    ):
        started.begin()
    assert started.calls == []
    assert [found.process.poll() for found in started._probes] == [3, 3]
