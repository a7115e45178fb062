"""A charge in a task's header, and caps that go with it, on every store. See also test_celery.py.

Tasks are published to a broker in memory, taken from it, and run by the worker's own tracer.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from contextvars import Context
from decimal import Decimal
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import trace_task
from django.conf import LazySettings
from django.core import signing
from django.test import override_settings
from django.utils import timezone

from tests.stores import ALIASES, configured, own_pool
from token_allowance import allowance, conf, jobs, tasks
from token_allowance.attribution import NOBODY, charge_to, current
from token_allowance.exceptions import CapExceeded
from token_allowance.models import Counter, Price, Reservation
from token_allowance.prices import bundled
from token_allowance.problems import headers as problem_headers
from token_allowance.stores.database import DatabaseStore
from token_allowance.stores.memory import MemoryStore

MODEL = "gpt-5-mini"
MEMORY = {"STORE": {"BACKEND": "token_allowance.stores.memory.MemoryStore"}}
LOAD = bundled.load
app = Celery("test_jobs", broker="memory://", set_as_current=False)
app.conf.task_default_queue = "test_jobs"


@app.task
def who() -> list[str]:
    return [*current().attribution().as_dict().values(), current().trace_id]


@app.task
@allowance.charge_to(max_calls=3)
def capped(calls: int) -> int:
    return spend(calls)


@app.task(bind=True, autoretry_for=(ConnectionError,), retry_backoff=False, default_retry_delay=0)
@allowance.charge_to(max_calls=3, user=lambda calls: f"u{calls}")
def flaky(self: Any, calls: int) -> int:
    made = spend(calls)
    if self.request.retries < 1:
        raise ConnectionError
    return made


@app.task
def spends(calls: int, tokens: int = 10) -> int:
    return spend(calls, tokens)


@app.task
def leaves_a_block_open() -> None:
    allowance.charge_to(user="left over").__enter__()


@app.task
def told(secret: str) -> list[str]:
    return [*current().attribution().as_dict().values(), current().trace_id]


def spend(calls: int = 1, tokens: int = 10) -> int:
    """Make so many calls, at a micro-dollar for each token; how many were admitted."""
    for number in range(calls):
        try:
            with call(tokens) as one:
                one.record(allowance.Usage(tokens))
        except CapExceeded:
            return number
    return calls


def call(tokens: int = 10) -> allowance.call:
    return allowance.call(provider="openai", model=MODEL, input_tokens=tokens, max_output_tokens=0)


def alias_is_memory() -> bool:
    return isinstance(conf.store(), MemoryStore)


def messages() -> list[Any]:
    """The messages published since, as a worker takes them."""
    found = []
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue("test_jobs")
        for _ in range(queue.qsize()):
            message = queue.get(timeout=1)
            message.ack()
            found.append(message)
        queue.close()
    return found


def attempt(message: Any, worker: Context | None = None, **delivery_info: Any) -> Any:
    """Run a message as a worker does; what the task returned, or the state it ended in."""
    worker = Context() if worker is None else worker
    args, kwargs, _ = message.payload
    request = {**message.headers, "delivery_info": delivery_info, "is_eager": False}
    request |= {"args": args, "kwargs": kwargs}
    task = app.tasks[message.headers["task"]]
    given = task, message.headers["id"], args, kwargs, request
    answer = worker.run(lambda: trace_task(*given, app=app))
    return answer.info.state if answer.info else answer.retval


def sent(task: Any, *args: Any) -> Any:
    task.delay(*args)
    (message,) = messages()
    return message


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    messages()
    yield
    assert messages() == []
    assert current() is NOBODY


# Headers


def test_each_task_has_the_charge_it_was_published_under_case_c80():
    found = []
    for user in ("42", "43"):
        with allowance.charge_to(tenant="7", user=user, feature="f", trace_id=f"t{user}"):
            found.append(sent(who))
    found.append(sent(who))
    worker = Context()
    expected = ["7", "42", "", "f", "t42"], ["7", "43", "", "f", "t43"], [""] * 5
    assert [attempt(message, worker) for message in found] == list(expected)


def test_what_a_task_leaves_behind_is_gone_before_the_next_one():
    worker = Context()
    for _ in range(2):
        attempt(sent(leaves_a_block_open), worker)
        assert worker.run(current) is NOBODY
        assert attempt(sent(who), worker) == [""] * 5


def test_a_worker_has_nothing_of_its_own_to_add():
    worker = Context()
    worker.run(charge_to(user="before").__enter__)
    assert attempt(sent(who), worker) == [""] * 5
    assert worker.run(current) is NOBODY


def test_a_header_holds_who_pays_and_nothing_of_the_arguments():
    with allowance.charge_to(tenant="7", max_calls=3, max_cost="0.05"):
        message = sent(told, "the prompt")
    header = message.headers[jobs.HEADER]
    content = signing.loads(header, salt=jobs.SALT)
    assert set(content) == {"task", "message", "since", "charge", "trace_id", "runs"}
    assert content["charge"] == {"tenant": "7"}
    assert [caps[1:3] for caps in content["runs"]] == [[3, 50_000]]
    assert "prompt" not in json.dumps(content)
    assert len(header) < 500


@pytest.mark.parametrize("wrong", ["other task", "changed", "other salt", "no text", "empty"])
def test_a_header_that_is_not_ours_is_reported_and_charges_nobody(wrong: str, caplog):
    with allowance.charge_to(tenant="7"):
        message, other = sent(who), sent(who)
    good = message.headers[jobs.HEADER]
    message.headers[jobs.HEADER] = {
        "other task": other.headers[jobs.HEADER],
        "changed": "A" + good[1:] if good[0] != "A" else "B" + good[1:],
        "other salt": signing.dumps({"task": message.headers["id"], "charge": {"tenant": "7"}}),
        "no text": {"tenant": "7"},
        "empty": "",
    }[wrong]
    assert attempt(message) == [""] * 5
    assert [record.levelname for record in caplog.records if "not signed" in record.message] == [
        "WARNING"
    ]


def test_a_key_that_was_rotated_is_still_believed():
    with override_settings(SECRET_KEY="old"), allowance.charge_to(tenant="7"):
        message = sent(who)
    with override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=["old"]):
        assert attempt(message)[0] == "7"


def test_an_eager_task_runs_under_its_callers_charge_and_leaves_it():
    with allowance.charge_to(tenant="7", user="42") as charge:
        assert who.apply().get()[:2] == ["7", "42"]
        assert current() is charge


def test_connecting_again_changes_nothing():
    jobs.connect()
    with allowance.charge_to(tenant="7"):
        assert attempt(sent(who))[0] == "7"


# Caps


@pytest.fixture(params=["memory", "postgresql", "sqlite"])
def alias(
    request: pytest.FixtureRequest,
    databases: None,
    django_db_blocker: Any,
    settings: LazySettings,
) -> Iterator[str]:
    """Each store in turn, with a price; where its policy and ledger are."""
    alias = ALIASES.get(request.param, "default")
    settings.TOKEN_ALLOWANCE = MEMORY if request.param == "memory" else configured(alias)
    with django_db_blocker.unblock(), own_pool(alias):
        prices = Price.objects.using(alias)
        prices.create(provider="openai", model=MODEL, input_mtok=Decimal(1), output_mtok=Decimal(2))
        yield alias
        assert conf.store().rebuild(timezone.now()) == []


def test_c40_parent_and_child_share_their_calls(alias: str):
    with allowance.charge_to(max_calls=10):
        assert spend(4) == 4
        first, second = sent(spends, 5), sent(spends, 9)
        assert attempt(first) == 5
        assert attempt(second) == 1
        with pytest.raises(CapExceeded, match="10 of 10 calls are made") as caught, call():
            raise AssertionError("the eleventh call")
    assert caught.value.code == "per_request_calls_exceeded"
    assert (caught.value.used, caught.value.reserved, caught.value.available) == (10, 0, 0)
    assert "Retry-After" not in problem_headers(caught.value)


def test_c40_parent_and_children_share_their_dollars(alias: str):
    with allowance.charge_to(max_cost="0.000125"):
        children = sent(spends, 2, 50), sent(spends, 2, 50)
        assert [attempt(child) for child in children] == [2, 0]
        with (
            pytest.raises(CapExceeded, match=r"\$0.0001.* of \$0.000125 is used") as caught,
            call(26),
        ):
            raise AssertionError("too much")
        assert spend(1, tokens=25) == 1
    assert caught.value.code == "per_request_cost_exceeded"
    assert (caught.value.amount, caught.value.available, caught.value.needed) == (125, 25, 26)


def test_what_was_in_flight_when_the_task_was_published_counts(alias: str):
    with allowance.charge_to(max_calls=3):
        with call() as one, call() as other:
            child = sent(spends, 3)
            assert attempt(child) == 1
            one.release()
            other.record(allowance.Usage(10))
        assert attempt(child, redelivered=True) == 1
        assert spend() == 0


def test_a_run_that_has_called_nothing_is_not_looked_for_in_the_ledger(alias: str, monkeypatch):
    with monkeypatch.context() as patch, allowance.charge_to(max_calls=3, max_cost="1"):
        patch.setattr(DatabaseStore, "_seed", None)
        assert attempt(sent(spends, 2)) == 2
        assert spend(2) == 1


def test_a_child_may_have_a_cap_of_its_own_inside(alias: str):
    with allowance.charge_to(max_calls=5):
        first, second = sent(capped, 9), sent(capped, 9)
        assert [attempt(first), attempt(second)] == [3, 2]
    assert attempt(sent(capped, 9)) == 3


@pytest.mark.parametrize("delivery", [{"redelivered": True}, {}], ids=["again", "twice at once"])
def test_attempts_at_one_message_share_the_cap_of_its_task(alias: str, delivery: dict[str, Any]):
    message = sent(capped, 2)
    assert attempt(message) == 2
    assert attempt(message, **delivery) == 1
    assert attempt(sent(capped, 2)) == 2


def test_a_cap_outlives_its_counter(alias: str):
    message = sent(capped, 2)
    assert attempt(message) == 2
    if alias_is_memory():
        conf.store().counters.clear()
    else:
        Counter.objects.using(alias).all().delete()
    assert attempt(message, redelivered=True) == 1


def test_a_retry_keeps_charge_and_cap(alias: str):
    with allowance.charge_to(tenant="7"):
        first = sent(flaky, 2)
    assert attempt(first) == "RETRY"
    (second,) = messages()
    assert second.headers[jobs.HEADER] == first.headers[jobs.HEADER]
    assert attempt(second) == 1
    if not alias_is_memory():
        rows = Reservation.objects.using(alias)
        assert set(rows.values_list("tenant", "user")) == {("7", "u2")}
        assert rows.count() == 3


def test_more_may_be_held_only_within_a_shared_cap(alias: str):
    with allowance.charge_to(max_cost="0.000100"):
        sent(who)
        with call(60) as one:
            one.extend(allowance.Usage(40))
            with pytest.raises(CapExceeded):
                one.extend(allowance.Usage(1))
            one.record(allowance.Usage(70))
        assert spend(2, tokens=30) == 1


def test_a_shared_cap_that_is_only_observed_is_noted(alias: str, settings: LazySettings):
    chosen: dict[str, Any] = getattr(settings, "TOKEN_ALLOWANCE")  # noqa: B009
    settings.TOKEN_ALLOWANCE = {**chosen, "MODE": "observe"}
    with allowance.charge_to(max_calls=1):
        assert attempt(sent(spends, 2)) == 2
    if not alias_is_memory():
        found = Reservation.objects.using(alias).order_by("created_at")
        assert [row.flags for row in found] == [[], ["would_refuse"]]


def test_publishing_waits_for_a_call_that_is_being_reserved(alias: str, monkeypatch):
    store = conf.store()
    reserve, reserving, go_on = store.reserve, threading.Event(), threading.Event()

    def slow(request: Any) -> Any:
        reserving.set()
        assert go_on.wait(10)
        return reserve(request)

    with allowance.charge_to(max_calls=1), allowance.executor(2) as threads:
        monkeypatch.setattr(store, "reserve", slow)
        spent = threads.submit(spend)
        assert reserving.wait(10)
        monkeypatch.setattr(store, "reserve", reserve)
        published = threads.submit(sent, spends, 1)
        assert not wait([published], timeout=0.1).done
        go_on.set()
        assert spent.result() == 1
        assert attempt(published.result()) == 0


# The recurring work


def test_the_recurring_tasks_are_known_to_celery_by_the_names_in_the_schedule():
    app.finalize()
    for entry in tasks.BEAT_SCHEDULE.values():
        assert entry["task"] in app.tasks
        assert entry["schedule"] > 0


@pytest.mark.django_db
def test_the_recurring_tasks_end_leases_and_add_prices(monkeypatch):
    monkeypatch.setattr(bundled, "load", lambda: [p for p in LOAD() if p.id == "groq"])
    with allowance.call(provider="openai", model=MODEL, tenant="7") as made:
        made.defer("batch", hours=-1)
        assert tasks.expire_reservations() == 0  # a lease is never made shorter
    Reservation.objects.update(expires_at=timezone.now() - dt.timedelta(seconds=1))
    assert tasks.expire_reservations() == 1
    assert Reservation.objects.get().state == "expired"
    assert tasks.sync_prices() == Price.objects.count() > 5
    assert tasks.sync_prices() == 0
