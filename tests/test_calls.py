"""allowance.call: a call that is not HTTP through a metered client, reserved by hand."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from contextvars import copy_context
from typing import Any

import pytest
from django.db import connection, connections

from project.provider import Reply
from tests.metering import GPT, Lab, cancelled, create
from token_allowance import allowance
from token_allowance.attribution import NOBODY, current
from token_allowance.exceptions import (
    AllowanceExceeded,
    CapExceeded,
    ReservationError,
    TooLarge,
    UnknownModel,
)

pytestmark = pytest.mark.django_db(transaction=True)

CALL: dict[str, Any] = {
    "provider": "openai",
    "model": GPT,
    "input_tokens": 100,
    "max_output_tokens": 50,
}
RESERVED = 200  # 100 at one micro-dollar and 50 at two
Usage = allowance.Usage
both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@pytest.fixture
def lab():
    with Lab() as lab:
        yield lab
    assert current() is NOBODY


def run(asynchronous: bool, body, **options) -> None:
    """Do ``body(call)`` in a block of either kind."""

    async def arun() -> None:
        async with allowance.call(**{**CALL, **options}) as call:
            body(call)

    if asynchronous:
        asyncio.run(arun())
        return
    with allowance.call(**{**CALL, **options}) as call:
        body(call)


@both
def test_what_was_recorded_is_charged_however_often_it_came(lab, asynchronous):
    def turns(call) -> None:
        assert (call.model, call.max_output_tokens) == (GPT, 50)
        assert lab.figures()["cost"] == (0, RESERVED)
        for _ in range(3):
            call.record(Usage(input_tokens=30, output_tokens=7))

    run(asynchronous, turns, tenant="acme", feature="voice")
    row = lab.row()
    assert (row.state, row.flags, row.cost_micros) == ("settled", [], 3 * (30 + 14))
    assert (row.input_tokens, row.output_tokens) == (90, 21)
    assert (row.tenant, row.feature, row.reserved_micros) == ("acme", "voice", RESERVED)
    assert lab.figures() == {"cost": (132, 0), "tokens": (111, 0), "calls": (1, 0)}


@both
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (lambda call: None, ("settled", ["estimated"], RESERVED)),
        (lambda call: call.release(), ("released", [], None)),
        (lambda call: call.mark_uncertain(), ("settled", ["uncertain"], RESERVED)),
        (lambda call: call.record(Usage()), ("settled", [], 0)),
    ],
    ids=["nothing", "release", "uncertain", "zero"],
)
def test_how_a_block_may_end(lab, asynchronous, end, expected):
    run(asynchronous, end)
    assert lab.ended() == [expected]
    assert lab.figures()["cost"] == (expected[2] or 0, 0)


class Broken(Exception):
    pass


@both
@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        (lambda call: None, ("settled", ["uncertain"], RESERVED)),
        (lambda call: call.record(Usage(10, 5)), ("settled", [], 20)),
        (lambda call: call.release(), ("released", [], None)),
    ],
    ids=["nothing", "recorded", "released"],
)
def test_a_block_that_fails(lab, asynchronous, begin, expected):
    def fail(call) -> None:
        begin(call)
        raise Broken

    with pytest.raises(Broken):
        run(asynchronous, fail)
    assert lab.ended() == [expected]


def test_a_cancelled_block_is_charged_as_reserved(lab):
    entered: list[bool] = []

    async def ask() -> None:
        async with allowance.call(**CALL):
            entered.append(True)
            await asyncio.sleep(10)

    async def leave() -> None:
        await cancelled(ask(), after=lambda: bool(entered))

    asyncio.run(leave())
    assert lab.ended() == [("settled", ["uncertain"], RESERVED)]


@both
def test_a_refused_block_is_not_entered(lab, asynchronous):
    lab.shrink("calls", 1)
    run(asynchronous, lambda call: call.record(Usage(1)))

    def never(call) -> None:
        raise AssertionError("entered")

    with pytest.raises(AllowanceExceeded):
        run(asynchronous, never)
    lab.shrink("cost", RESERVED - 1)
    with pytest.raises(TooLarge):
        run(asynchronous, never)
    assert len(lab.rows()) == 1
    assert current() is NOBODY


def test_more_can_be_held_until_a_budget_is_full(lab):
    lab.shrink("cost", 300)
    with allowance.call(**CALL) as call:
        call.extend(Usage(input_tokens=60, output_tokens=20))
        assert lab.figures()["cost"] == (0, 300)
        with pytest.raises(AllowanceExceeded) as caught:
            call.extend(Usage(input_tokens=1))
        assert (caught.value.needed, caught.value.reserved) == (1, 300)
        assert lab.figures()["cost"] == (0, 300)
        call.record(Usage(input_tokens=110, output_tokens=40))
    row = lab.row()
    assert (row.reserved_micros, row.reserved_tokens, row.cost_micros) == (300, 230, 190)
    assert lab.figures() == {"cost": (190, 0), "tokens": (150, 0), "calls": (1, 0)}


def test_what_was_held_in_addition_is_charged_where_nothing_was_recorded(lab):
    async def ask() -> None:
        async with allowance.call(**CALL) as call:
            await call.aextend(Usage(input_tokens=60, output_tokens=20), seconds=900)

    asyncio.run(ask())
    row = lab.row()
    assert (row.flags, row.cost_micros, row.input_tokens + row.output_tokens) == (
        ["estimated"],
        300,
        230,
    )


def test_what_is_held_in_addition_counts_in_the_cap_of_the_run(lab):
    with allowance.charge_to(max_cost="0.0003", max_calls=3):
        with allowance.call(**CALL) as call:
            with pytest.raises(CapExceeded):
                call.extend(Usage(input_tokens=101))
            call.extend(Usage(input_tokens=100))
            call.record(Usage(input_tokens=120))
        with allowance.call(**{**CALL, "input_tokens": 80}) as call:  # 120 + 180 fit exactly
            call.record(Usage(input_tokens=80))
        with pytest.raises(CapExceeded) as caught, allowance.call(**CALL):
            pass
    assert (caught.value.used, caught.value.needed, caught.value.amount) == (200, 200, 300)


def test_a_call_that_is_over_says_so(lab):
    with allowance.call(**CALL) as call:
        call.release()
        for again in (call.release, call.mark_uncertain, lambda: call.record(Usage(1))):
            with pytest.raises(ReservationError):
                again()
    with allowance.call(**CALL) as call:
        pass
    for late in (lambda: call.extend(Usage(1)), lambda: call.defer("late")):
        with pytest.raises(ReservationError):
            late()
    with pytest.raises(ReservationError):
        _ = allowance.call(**CALL).repeated
    assert len(lab.rows()) == 2


# Deferred


def test_a_deferred_call_is_settled_from_another_thread(lab):
    with allowance.call(**CALL, tenant="acme") as call:
        call.defer("batch_123", hours=48)
    (row,) = lab.rows()
    assert (row.state, row.deferred_id) == ("reserved", "batch_123")
    assert 47 < (row.expires_at - row.created_at).total_seconds() / 3600 < 49
    assert lab.figures()["cost"] == (0, RESERVED)
    said: list[str] = []

    def settle() -> None:
        said.append(allowance.settle_deferred("batch_123", Usage(80, 25)))
        said.append(allowance.settle_deferred("batch_123", Usage(80, 25)))
        said.append(allowance.settle_deferred("batch_123", Usage(81, 25)))
        connections.close_all()

    thread = threading.Thread(target=settle)
    thread.start()
    thread.join()
    assert said == ["settled", "repeat", "conflict"]
    row = lab.row()
    assert (row.state, row.cost_micros, row.tenant) == ("settled", 130, "acme")
    assert lab.figures() == {"cost": (130, 0), "tokens": (105, 0), "calls": (1, 0)}


SETTLE = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
from django.conf import settings
settings.DATABASES["default"]["NAME"] = sys.argv[1]
import django
django.setup()
from token_allowance import allowance
sys.stdout.write(allowance.settle_deferred("batch_9", allowance.Usage(80, 25)))
"""


def test_a_deferred_call_is_settled_from_another_process(lab):
    with allowance.call(**CALL) as call:
        call.defer("batch_9")
    name = connection.settings_dict["NAME"]
    done = subprocess.run(
        [sys.executable, "-c", SETTLE, str(name)], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("settled", 0), done.stderr
    assert lab.ended() == [("settled", [], 130)]


def test_a_deferred_call_whose_block_fails_afterwards_stays_deferred(lab):
    def fail(call) -> None:
        call.defer("batch_1")
        raise Broken

    with pytest.raises(Broken):
        run(False, fail)
    assert lab.figures()["cost"] == (0, RESERVED)
    assert asyncio.run(allowance.asettle_deferred("batch_1", Usage(1, 1))) == "settled"
    with pytest.raises(ReservationError, match="batch_2"):
        allowance.settle_deferred("batch_2", Usage(1, 1))


# Repeated


def test_the_same_key_is_one_call(lab):
    for repeated in (False, True, True):
        with allowance.call(**CALL, idempotency_key="task-7", tenant="acme") as call:
            assert call.repeated is repeated
            call.record(Usage(90, 5))
    assert lab.ended() == [("settled", [], 100)]
    assert lab.figures() == {"cost": (100, 0), "tokens": (95, 0), "calls": (1, 0)}


def test_the_same_key_of_another_tenant_is_another_call(lab):
    for tenant in ("acme", "globex"):
        with allowance.call(**CALL, idempotency_key="task-7", tenant=tenant) as call:
            assert not call.repeated
            call.record(Usage(90, 5))
    assert len(lab.rows()) == 2


def test_a_repeated_call_that_does_nothing_costs_nothing_more(lab):
    with allowance.charge_to(max_calls=2, max_cost="0.0005"):
        with allowance.call(**CALL, idempotency_key="once") as call:
            call.record(Usage(90, 5))
        for _ in range(5):
            with allowance.call(**CALL, idempotency_key="once") as call:
                assert call.repeated
        with allowance.call(**CALL) as call:
            call.record(Usage(90, 5))
        with pytest.raises(CapExceeded), allowance.call(**CALL):
            pass
    assert [row.cost_micros for row in lab.rows(2)] == [100, 100]


@both
@pytest.mark.parametrize("error", [None, Broken], ids=["normal", "exception"])
def test_a_repeated_call_that_does_nothing_leaves_the_first_one_in_flight(lab, asynchronous, error):
    def duplicate(call) -> None:
        assert call.repeated
        if error:
            raise error

    with allowance.call(**CALL, idempotency_key="once") as first:
        with contextlib.suppress(Broken):
            run(asynchronous, duplicate, idempotency_key="once")
        run(asynchronous, lambda call: call.release(), idempotency_key="once")
        assert lab.figures()["cost"] == (0, RESERVED)
        first.record(Usage(90, 5))
    assert lab.ended() == [("settled", [], 100)]


def test_a_key_whose_call_was_released_is_held_and_charged_again(lab):
    with allowance.call(**CALL, idempotency_key="once") as call:
        call.release()
    with allowance.call(**CALL, idempotency_key="once") as call:
        assert not call.repeated
        assert lab.figures()["cost"] == (0, RESERVED)
        call.record(Usage(90, 5))
    assert lab.ended() == [("released", [], None), ("settled", [], 100)]
    lab.shrink("calls", 1)
    with pytest.raises(AllowanceExceeded), allowance.call(**CALL, idempotency_key="other"):
        pass


def test_a_key_that_is_released_while_its_repeat_is_looked_up_is_held_anew(lab, monkeypatch):
    find = lab.store.find

    def late(store, **wanted):
        first.release()
        monkeypatch.undo()
        return find(store, **wanted)

    with allowance.call(**CALL, idempotency_key="once") as first:
        monkeypatch.setattr(lab.store, "find", late)
        with allowance.call(**CALL, idempotency_key="once") as second:
            assert not second.repeated
            assert lab.figures()["cost"] == (0, RESERVED)
            second.record(Usage(90, 5))
    assert lab.ended() == [("released", [], None), ("settled", [], 100)]


def test_a_key_that_no_table_can_hold_is_refused_at_once():
    with pytest.raises(ValueError, match="idempotency_key"):
        allowance.call(**CALL, idempotency_key="a\x00b")


# Around other code


def test_a_metered_client_inside_is_not_counted_again_case_c52(lab):
    lab.provider.script(default=Reply(input_tokens=7_213, output_tokens=386))
    with lab.client("openai") as client:
        with allowance.call(**CALL) as call:
            used = create(client).usage
            call.record(Usage(used.prompt_tokens, used.completion_tokens))
        create(client)
    inside, after = lab.rows(2)
    assert inside.cost_micros == after.cost_micros == 7_213 + 772
    assert lab.requests() == 2


def test_a_block_held_open_by_a_generator_ends_in_whatever_context_ends_it(lab):
    """As a streamed response does: each step may run in a context of its own."""

    def steps():
        with allowance.call(**CALL) as call:
            yield 1
            call.record(Usage(10, 5))
            yield 2

    running = steps()
    for _ in range(2):
        copy_context().run(next, running)
    assert copy_context().run(next, running, None) is None
    assert lab.ended() == [("settled", [], 20)]


def test_an_unknown_model_is_refused_where_dollars_are_limited(lab):
    with pytest.raises(UnknownModel), allowance.call(provider="openai", model="nobody"):
        pass
    assert lab.rows() == []


@pytest.mark.django_db(databases=["default", "sqlite"], transaction=True)
def test_the_same_on_sqlite():
    with Lab("sqlite") as lab:
        with allowance.call(**CALL) as call:
            call.extend(Usage(input_tokens=60))
            call.record(Usage(30, 7))
        with allowance.call(**CALL) as call:
            call.defer("batch_1")
        assert lab.figures()["cost"] == (44, RESERVED)
        assert allowance.settle_deferred("batch_1", Usage(80, 25)) == "settled"
        with allowance.call(**CALL, idempotency_key="k"):
            pass
        with allowance.call(**CALL, idempotency_key="k") as call:
            assert call.repeated
        assert [row.cost_micros for row in lab.rows(3)] == [44, 130, RESERVED]
