"""The end of a call, as it is told: counted once, and sent to who listens."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from project.provider import Reply
from tests.metering import GPT, Lab, micros
from tests.stores import NOW
from token_allowance import allowance, leases, metrics, settlements
from token_allowance.bills import Account
from token_allowance.signals import call_finished
from token_allowance.stores.base import Outcome
from token_allowance.usage import Usage

pytestmark = pytest.mark.django_db(databases=["default"], transaction=True)
ROW = {
    "provider": "openai", "model": "m", "feature": "chat", "state": "settled",
    "flags": ["estimated"], "cost_micros": 5, "reserved_micros": 9, "input_tokens": 3,
    "output_tokens": 4, "tenant": "acme", "user": "u_1",
}  # fmt: skip


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as lab:
        metrics.reset()
        yield lab


@pytest.fixture
def told() -> Iterator[list[dict[str, Any]]]:
    """What a receiver is given, without the signal itself."""
    heard: list[dict[str, Any]] = []

    def receive(signal: Any, sender: Any, **given: Any) -> None:
        heard.append(given)

    call_finished.connect(receive)
    yield heard
    call_finished.disconnect(receive)


def flagged(flag: str) -> int:
    return metrics.value(metrics.CALLS_FLAGGED, flag=flag)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_c30_a_stream_that_reports_nothing_is_counted_as_estimated_once(lab, told, asynchronous):
    lab.price("openai", "m-30", 0, 50)
    lab.provider.script([Reply(text="windy " * 50, chunks=3, no_usage_even_if_asked=True)])
    lab.ask(
        "openai", stream=True, asynchronous=asynchronous, model="m-30", max_completion_tokens=100
    )
    assert lab.row().cost_micros == 5_000
    assert flagged("estimated") == 1
    assert metrics.value(metrics.CALLS_FINISHED, provider="openai", state="settled") == 1
    (sent,) = told
    assert "estimated" in sent["flags"]
    assert (sent["cost_micros"], sent["reserved_micros"]) == (5_000, 5_000)


def test_a_call_that_reports_its_usage_is_told_without_a_word_of_it(lab, told):
    lab.provider.script([Reply(text="secret", input_tokens=20, output_tokens=5)])
    with allowance.charge_to(tenant="acme", user="u_1", feature="chat"):
        lab.ask("openai")
    row = lab.row()
    assert told == [
        {
            "provider": "openai", "model": GPT, "feature": "chat", "state": "settled", "flags": (),
            "cost_micros": micros("openai", 20, 5), "reserved_micros": row.reserved_micros,
            "input_tokens": 20, "output_tokens": 5,
        }
    ]  # fmt: skip
    labels = (("provider", "openai"),)
    assert metrics.snapshot() == {
        (metrics.CALLS_FINISHED, (*labels, ("state", "settled"))): 1,
        (metrics.COST_MICROS, labels): micros("openai", 20, 5),
        (metrics.INPUT_TOKENS, labels): 20,
        (metrics.OUTPUT_TOKENS, labels): 5,
    }


def test_a_released_call_is_told_as_such(lab, told):
    with allowance.call(provider="openai", model=GPT, input_tokens=9, max_output_tokens=1) as call:
        call.release()
    assert [(one["state"], one["cost_micros"]) for one in told] == [("released", None)]
    assert metrics.value(metrics.CALLS_FINISHED, state="released") == 1
    assert metrics.value(metrics.CALLS_FLAGGED) == 0


def test_a_call_that_is_settled_twice_is_told_once(lab, told):
    with allowance.call(provider="openai", model=GPT, input_tokens=9, max_output_tokens=1) as call:
        call.defer("batch_1", hours=1)
    for output_tokens in (1, 1, 2):
        allowance.settle_deferred("batch_1", Usage(9, output_tokens))
    assert [(one["state"], one["output_tokens"]) for one in told] == [("settled", 1)]
    assert metrics.value(metrics.CALLS_FINISHED) == 1
    assert metrics.value(metrics.CALLS_CONFLICTING, provider="openai") == 1


def test_a_call_whose_lease_had_ended_is_told_when_it_is_settled_late(lab, told):
    with allowance.call(provider="openai", model=GPT, input_tokens=9, max_output_tokens=1) as call:
        call.defer("batch_1", hours=1)
    row = lab.store().find(deferred_id="batch_1")
    assert settlements.settle_row(_Late(), row, Account(usage=Usage(9, 1))) is Outcome.LATE
    allowance.settle_deferred("batch_1", Usage(9, 1))
    assert [one["flags"] for one in told] == [("late",), ()]


class _Late:
    """A store that says of every settlement that it came late."""

    def settle(self, settlement: Any) -> Outcome:
        return Outcome.LATE


def test_calls_that_ended_with_their_lease_are_counted(lab, told, monkeypatch):
    ended = iter([500, 7])
    monkeypatch.setattr(lab.store, "expire", lambda *_, **__: next(ended))
    assert leases.expire(NOW) == 507
    assert metrics.value(metrics.CALLS_EXPIRED) == 507
    assert told == []


def test_a_receiver_that_fails_costs_the_call_nothing(lab, told):
    def fail(**given: Any) -> None:
        raise RuntimeError("the receiver is broken")

    call_finished.connect(fail)
    try:
        lab.ask("openai")
    finally:
        call_finished.disconnect(fail)
    assert lab.row().state == "settled"
    assert len(told) == 1


def test_a_receiver_may_be_a_coroutine_function(lab):
    heard: list[str] = []

    async def receive(state: str, **given: Any) -> None:
        await asyncio.sleep(0)
        heard.append(state)

    call_finished.connect(receive)
    try:
        lab.ask("openai", asynchronous=True)
        lab.rows(1)
    finally:
        call_finished.disconnect(receive)
    assert heard == ["settled"]


def test_nothing_is_made_for_nobody() -> None:
    rounds = 2_000
    began = time.perf_counter()
    for _ in range(rounds):
        settlements.tell(Outcome.SETTLED, ROW)
    assert (time.perf_counter() - began) / rounds < 50e-6  # 3 µs where nothing else runs


def test_counting_from_many_threads_loses_nothing() -> None:
    metrics.reset()

    def work() -> None:
        for _ in range(500):
            settlements.tell(Outcome.SETTLED, ROW)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.value(metrics.CALLS_FINISHED) == flagged("estimated") == 4_000
    assert metrics.value(metrics.COST_MICROS) == 20_000


FORKS = """
import os
from token_allowance import metrics
metrics.count(metrics.CALLS_EXPIRED, 3)
with metrics._lock:
    child = os.fork()
    if child == 0:
        metrics.count(metrics.CALLS_EXPIRED)
        os._exit(metrics.value(metrics.CALLS_EXPIRED))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), metrics.value(metrics.CALLS_EXPIRED))
"""


def test_a_forked_child_begins_at_zero_even_while_its_parent_counts() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.split() == ["1", "3"]
