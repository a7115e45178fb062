"""What is refused is counted by minute: exactly, cheaply, and never in the caller's way."""

from __future__ import annotations

import datetime as dt
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import transaction
from django.db.models import Max, Sum
from django.utils import timezone

from tests.metering import within
from tests.refused_callers import running
from tests.waiters import in_flight
from token_allowance import allowance, conf, metrics, refusal_counts
from token_allowance.exceptions import AllowanceError, UnknownModel
from token_allowance.limits import Attribution
from token_allowance.models import Limit, Refusal

CALL: dict[str, Any] = {"provider": "openai", "model": "m", "tenant": "acme", "user": "ana"}
PROCESSES = 4


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As outside of a test run, but written only when a test says so."""
    refusal_counts._begin_again()
    monkeypatch.setattr(refusal_counts, "in_tests", lambda: False)
    monkeypatch.setattr(refusal_counts.Writer, "wake", lambda self: None)
    yield
    refusal_counts._begin_again()


def refused(**given: Any) -> AllowanceError:
    with pytest.raises(AllowanceError) as caught, allowance.call(**(CALL | given)):
        pass
    return caught.value


def rows(alias: str = "default") -> list[tuple[str, str, int]]:
    assert refusal_counts.flush()
    found = Refusal.objects.using(alias).order_by("code", "key")
    return list(found.values_list("code", "key", "calls"))


def limited(alias: str, **given: Any) -> Limit:
    row = {"unit": "tokens", "window": "total", "amount": 0, **given}
    return Limit.objects.using(alias).create(**row)


def test_200_refusals_in_four_processes_are_200(database: str) -> None:
    limited(database, tenant="acme")
    with running(PROCESSES) as callers:
        for caller in callers:
            caller.ask(30)
            caller.ask(20)
        assert [caller.answer() + caller.answer() for caller in callers] == [50] * PROCESSES
        assert [caller.end() for caller in callers] == [0] * PROCESSES
    found = Refusal.objects.using(database)
    assert found.aggregate(Sum("calls"))["calls__sum"] == 200
    seen = found.values_list("code", "tenant", "user", "feature", "provider", "model").distinct()
    assert sorted(seen) == [
        ("exhausted", "acme", user, "agent", "openai", "m") for user in ("u0", "u1")
    ]
    (key,) = set(found.values_list("key", flat=True))
    assert key.startswith("8|tenant=acme|tokens|total/")
    assert found.count() <= 4  # two people, and at most two minutes


def test_a_killed_process_loses_no_more_than_its_last_second(database: str) -> None:
    limited(database, tenant="acme")
    with running(1) as (caller,):
        caller.ask(40)
        assert caller.answer() == 40
        counted = Refusal.objects.using(database)
        assert within(lambda: counted.aggregate(Sum("calls"))["calls__sum"] == 40, 10)
        caller.ask(10)
        assert caller.answer() == 10
        os.kill(caller.process.pid, signal.SIGKILL)
        caller.process.wait()
    assert 40 <= counted.aggregate(Sum("calls"))["calls__sum"] <= 50


def test_a_fork_counts_nothing_twice(database: str) -> None:
    limited(database, tenant="acme")
    with running(1) as (caller,):
        caller.ask(20)
        caller.ask({"child": 7})
        assert (caller.answer(), caller.answer()) == (20, 7)
        assert caller.end() == 0
    assert Refusal.objects.using(database).aggregate(Sum("calls"))["calls__sum"] == 27


@pytest.mark.usefixtures("counting")
def test_a_refusal_outlives_the_caller_s_rollback_where_the_store_s_charge_does(
    database: str,
) -> None:
    limited(database, tenant="acme")
    with transaction.atomic(using=database):
        refused()
        transaction.set_rollback(True, using=database)
    assert [calls for _, _, calls in rows(database)] == [1]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("counting")
def test_each_reason_has_its_code_and_what_refused(settings: LazySettings) -> None:
    limited("default", tenant="spent", window="day")
    limited("default", tenant="small", amount=10)
    limited("default", tenant="busy", amount=2_000)
    limited("default", tenant="priced", unit="cost", amount=5)
    limited("default", feature="each", user="*")
    allowance.engage(tenant="stopped", reason="loop", by="ana")
    refused(tenant="spent")
    refused(tenant="small", input_tokens=11)
    with in_flight_of("busy", 1_900):
        refused(tenant="busy", input_tokens=1_000, max_output_tokens=0)
    refused(tenant="priced")
    refused(tenant="stopped")
    with allowance.charge_to(max_calls=0):
        refused()
    with pytest.raises(allowance.Unattributed), allowance.charge_to(feature="each"):
        allowance.admit()
    with pytest.raises(allowance.AllowanceExceeded):
        allowance.admit(tenant="spent", user="ana")
    found: Counter[tuple[str, str]] = Counter()
    for code, key, calls in rows():
        found[code, key.partition("|")[2].partition("|")[0] or key] += calls
    assert found == {
        ("exhausted", "tenant=spent"): 2,
        ("too_large", "tenant=small"): 1,
        ("held", "tenant=busy"): 1,
        ("unpriced_model", ""): 1,
        ("switch_engaged", "tenant=stopped"): 1,
        ("cap", "request"): 1,
        ("unattributed", ""): 1,
    }


def in_flight_of(tenant: str, tokens: int) -> Any:
    return allowance.call(**(CALL | {"tenant": tenant}), input_tokens=tokens, max_output_tokens=0)


@pytest.mark.usefixtures("counting")
def test_a_store_that_is_down_refuses_and_is_counted(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(request: Any) -> None:
        raise allowance.StoreUnavailable("the store is down, as the test says")

    monkeypatch.setattr(conf.store(), "reserve", down)
    refused()
    assert rows(database) == [("store_unavailable", "", 1)]


@pytest.mark.usefixtures("counting")
def test_a_call_that_waits_and_is_refused_in_the_end_counts_once(
    limit: Limit, database: str, settings: LazySettings
) -> None:
    settings.TOKEN_ALLOWANCE = {**settings.TOKEN_ALLOWANCE, "WAIT_SECONDS": 0.3}
    before = metrics.value(metrics.CALLS_REFUSED)
    with ThreadPoolExecutor(1) as others, in_flight(90) as flying:
        refused(input_tokens=50, max_output_tokens=0)
        waiting = others.submit(hold_when_free)
        time.sleep(0.1)
        flying.release()
    assert waiting.result()
    assert [(code, calls) for code, _, calls in rows(database)] == [("held", 1)]
    assert metrics.value(metrics.CALLS_REFUSED) == before + 1


def hold_when_free() -> bool:
    with allowance.call(**(CALL | {"user": "bob"}), input_tokens=50, max_output_tokens=0) as call:
        call.release()
    return True


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("counting")
def test_a_call_that_may_not_grow_was_refused_too() -> None:
    limited("default", tenant="acme", amount=2_000)
    with allowance.call(**CALL, input_tokens=1_000, max_output_tokens=0) as call:
        with pytest.raises(allowance.AllowanceExceeded):
            call.extend(allowance.Usage(1_500))
        call.release()
    assert [(code, calls) for code, _, calls in rows()] == [("held", 1)]


@pytest.mark.django_db(transaction=True)
def test_a_million_refusals_are_a_few_rows_and_no_person_is_a_label(
    counting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attackers choose names of models and users: rows a minute and memory stay bounded."""
    error = UnknownModel("no price")
    monkeypatch.setattr(refusal_counts, "MOST_A_MINUTE", 50)
    now = timezone.now().replace(second=1)
    monkeypatch.setattr(timezone, "now", lambda: now)
    for number in range(5_000):
        who = Attribution(tenant=f"t{number % 3}", user=f"u{number}", feature="agent")
        refusal_counts.note(error, "openai", f"m{number % 2}", who)
    assert refusal_counts.flush()
    assert Refusal.objects.aggregate(Sum("calls"))["calls__sum"] == 5_000
    assert Refusal.objects.count() == 50 + 6
    assert Refusal.objects.filter(user="").count() == 6
    for number in range(500):
        refusal_counts.note(error, f"p{number}", f"model-{number}", Attribution(tenant="t"))
    assert refusal_counts.flush()
    assert Refusal.objects.aggregate(Sum("calls"))["calls__sum"] == 5_500
    assert Refusal.objects.count() <= 101
    names = {name for _, labels in metrics.snapshot() for name, _ in labels}
    assert not names & {"tenant", "user", "session"}


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize(
    "model", ["a\x00b", "\ud800", "m" * 5_000, "漢" * 200], ids=["nul", "surrogate", "long", "wide"]
)
def test_no_name_of_a_model_stops_the_counting(database: str, model: str) -> None:
    limited(database, tenant="acme", unit="cost", amount=5)
    refused(model=model)
    refused(model="m", feature="f" * 200, user="u" * 200)
    assert [(code, calls) for code, _, calls in rows(database)] == [("unpriced_model", 1)] * 2


@pytest.mark.usefixtures("counting")
def test_names_that_no_index_could_hold_tell_less_apart(database: str) -> None:
    wide = "漢" * 200
    limited(database, tenant="*", user="*", feature="*")
    refused(tenant="t" * 200, user="u" * 200, feature="f" * 200)
    error = UnknownModel("no price")
    refusal_counts.note(error, wide, wide, Attribution(wide, wide, wide, wide))
    found = rows(database)
    assert sorted((code, calls) for code, _, calls in found) == [
        ("exhausted", 1), ("unpriced_model", 1),
    ]  # fmt: skip


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("counting")
def test_while_the_database_is_down_counts_wait_and_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def down(alias: str, operation: Any) -> None:
        raise allowance.StoreUnavailable("the database is down, as the test says")

    error = UnknownModel("no price")
    monkeypatch.setattr(refusal_counts, "MOST_WAITING", 3)
    with monkeypatch.context() as patch:
        patch.setattr(refusal_counts, "run", down)
        for number in (0, 1, 2, 3, 4, 0, 0):
            refusal_counts.note(error, "openai", f"m{number}", Attribution("acme"))
        assert not refusal_counts.flush()
        assert not refusal_counts.flush()
    assert sorted(calls for _, _, calls in rows()) == [1, 1, 3]
    assert "2 refusals are not counted" in caplog.text
    assert rows() == rows()


@pytest.mark.django_db(transaction=True)
def test_the_thread_lives_while_there_is_something_to_write(
    counting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alive() -> bool:
        return any(t.name == "token-allowance-refusals" for t in threading.enumerate())

    monkeypatch.undo()
    monkeypatch.setattr(refusal_counts, "in_tests", lambda: False)
    monkeypatch.setattr(refusal_counts, "EVERY_SECONDS", 0.05)
    for _ in range(2):
        refusal_counts.note(UnknownModel("no price"), "openai", "m", Attribution("acme"))
        assert alive()
        assert within(lambda: not alive(), 10)
    assert Refusal.objects.aggregate(Sum("calls"))["calls__sum"] == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("counting")
def test_a_minute_keeps_when_its_first_and_last_call_came(monkeypatch: pytest.MonkeyPatch) -> None:
    start = dt.datetime(2026, 3, 4, 12, 30, tzinfo=dt.UTC)
    for seconds in (20, 5, 59, 61):
        moment = start + dt.timedelta(seconds=seconds)
        monkeypatch.setattr(timezone, "now", lambda moment=moment: moment)
        refusal_counts.note(UnknownModel("no price"), "openai", "m", Attribution("acme"))
        assert refusal_counts.flush()
    found = Refusal.objects.order_by("starts_at").values_list("starts_at", "first_at", "last_at")
    at = [start + dt.timedelta(seconds=s) for s in (0, 5, 59, 60, 61)]
    assert list(found) == [(at[0], at[1], at[2]), (at[3], at[4], at[4])]
    assert Refusal.objects.aggregate(Max("calls"))["calls__max"] == 3


@pytest.mark.django_db(transaction=True)
def test_a_host_s_own_tests_write_nothing() -> None:
    refusal_counts._begin_again()
    limited("default", tenant="acme")
    before = metrics.value(metrics.CALLS_REFUSED, code="exhausted", provider="openai")
    refused()
    assert rows() == []
    assert metrics.value(metrics.CALLS_REFUSED, code="exhausted", provider="openai") == before + 1
    assert not any(t.name == "token-allowance-refusals" for t in threading.enumerate())
