"""Settlements that cannot be made at once: by a store that fails, or a process that ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from tests.metering import GPT, FlakyStore, Lab
from token_allowance import allowance, conf, settlements
from token_allowance.exceptions import StoreUnavailable, UnknownModel
from token_allowance.money import MAX_MICROS

CALL: dict[str, Any] = {
    "provider": "openai",
    "model": GPT,
    "input_tokens": 100,
    "max_output_tokens": 50,
}
RESERVED = 200  # 100 at one micro-dollar and 50 at two
USED = allowance.Usage(90, 5)  # 100 micro-dollars
database = pytest.mark.django_db(databases=["default", "sqlite"], transaction=True)
ROOT = Path(__file__).resolve().parents[1]
ENDS_WITH_THE_STORE_DOWN = """
import atexit
import sys

def tell():
    sys.stdout.write(" ".join(Reservation.objects.values_list("state", flat=True)) + ".")

atexit.register(tell)  # the first registered is the last to run
import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}},
    INSTALLED_APPS=["token_allowance"],
    USE_TZ=True,
)
django.setup()
from django.core.management import call_command
from token_allowance import allowance, conf
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import Limit, Reservation

def down(settlement):
    raise StoreUnavailable("as the test says")

call_command("migrate", verbosity=0)
Limit.objects.create(window="total", unit="tokens", amount=1000)
store = conf.store()
store.settle = down
with allowance.call(provider="any", model="any", input_tokens=7, max_output_tokens=9) as call:
    call.record(allowance.Usage(input_tokens=7, output_tokens=8))
tell()
del store.settle
"""


def test_a_process_that_ends_in_order_settles_what_waited_for_the_store(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ENDS_WITH_THE_STORE_DOWN, str(tmp_path / "sqlite3")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "reserved.settled.")


ENDS_WITH_WORK_QUEUED = (
    ENDS_WITH_THE_STORE_DOWN.split("store.settle = down")[0]
    + """
import time
from token_allowance import threads

held = allowance.call(provider="any", model="any", input_tokens=7, max_output_tokens=9)
held.__enter__()
held.record(allowance.Usage(input_tokens=7, output_tokens=8))
threads.later(lambda: time.sleep(0.3))
threads.later(lambda: held.__exit__(None, None, None))
tell()
"""
)


def test_a_process_that_ends_in_order_finishes_what_was_queued(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ENDS_WITH_WORK_QUEUED, str(tmp_path / "sqlite3")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "reserved.settled."), done.stderr


class Interrupted(BaseException):
    pass


class Settling:
    """A settle that raises these, one at each try, and then works."""

    def __init__(self, monkeypatch, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.real = FlakyStore.settle
        monkeypatch.setattr(FlakyStore, "settle", lambda store, made: self(store, made))

    def __call__(self, store, settlement):
        if self.errors:
            raise self.errors.pop(0)
        return self.real(store, settlement)


def call(**options) -> None:
    with allowance.call(**{**CALL, **options}) as made:
        made.record(USED)


def end_the_lost_one() -> None:
    """As its lease would."""
    row = conf.store().find(idempotency_key="lost")
    settlements.release_row(conf.store(), row)


@database
def test_an_answer_survives_a_fault_while_settling_and_is_charged_later(monkeypatch, caplog):
    with Lab() as lab:
        Settling(monkeypatch, RuntimeError("a fault"), RuntimeError("again"))
        call()
        assert lab.figures()["cost"] == (0, RESERVED)
        assert "a fault" in caplog.text
        for _ in range(2):
            call()
        assert [row.cost_micros for row in lab.rows(3)] == [100] * 3
        assert lab.figures()["cost"] == (300, 0)


@database
def test_a_settlement_that_always_fails_is_tried_a_few_times_only(monkeypatch, caplog):
    with Lab() as lab:
        failing = Settling(monkeypatch, *[RuntimeError("a fault")] * 100)
        call(idempotency_key="lost")
        for _ in range(5):
            settlements.apply_waiting()
        assert len(failing.errors) == 100 - settlements.TRIES
        assert "its lease ends it" in caplog.text
        failing.errors.clear()
        call()
        assert lab.figures()["cost"] == (100, RESERVED)
        end_the_lost_one()


@database
def test_an_interrupt_while_settling_goes_on_and_the_charge_is_kept(monkeypatch):
    with Lab() as lab:
        Settling(monkeypatch, Interrupted())
        with pytest.raises(Interrupted):
            call()
        assert lab.figures()["cost"] == (0, RESERVED)
        call()
        assert lab.figures()["cost"] == (200, 0)


@database
def test_a_waiting_settlement_that_is_interrupted_costs_a_new_call_no_hold(monkeypatch):
    with Lab() as lab:
        Settling(monkeypatch, Interrupted(), Interrupted())
        for _ in range(2):
            with pytest.raises(Interrupted):
                call()
        states = sorted((row.state, row.cost_micros) for row in lab.rows(2))
        assert states == [("released", None), ("settled", 100)]
        assert lab.figures()["cost"] == (100, 0)


@database
def test_settlements_that_no_longer_fit_are_told(monkeypatch, caplog):
    monkeypatch.setattr(settlements, "_waiting", deque(maxlen=1))
    monkeypatch.setattr(settlements, "WAITING_MOST", 1)
    with Lab():
        FlakyStore.down = {"settle"}
        call(idempotency_key="lost")
        assert "is lost" not in caplog.text
        call()
        assert "is lost" in caplog.text
        FlakyStore.down = set()
        settlements.apply_waiting()
        end_the_lost_one()


@database
@pytest.mark.parametrize("using", ["default", "sqlite"])
def test_usage_beyond_what_a_column_holds_is_charged_as_the_most_it_holds(using):
    with Lab(using) as lab:
        with allowance.call(**CALL) as made:
            made.record(allowance.Usage(10**30, 10**30, cache_read_tokens=10**29))
        row = lab.row()
        assert (row.state, row.cost_micros) == ("settled", MAX_MICROS)
        assert "anomaly" in row.flags
        assert row.input_tokens + row.output_tokens == MAX_MICROS
        assert lab.figures()["tokens"] == (MAX_MICROS, 0)
        assert lab.figures()["cost"] == (MAX_MICROS, 0)


@database
def test_a_name_that_no_table_can_hold_is_refused_also_without_the_store(monkeypatch):
    with Lab(ON_STORE_ERROR="admit") as lab:
        FlakyStore.down = {"reserve", "settle"}
        monkeypatch.setattr("token_allowance.policy.current", _unreadable)
        monkeypatch.setattr("token_allowance.policy.confirmed", _unreadable)
        with pytest.raises(UnknownModel):
            call(model="a\x00b")
        monkeypatch.undo()
        FlakyStore.down = set()
        assert lab.rows() == []


def _unreadable():
    raise StoreUnavailable("as the test says")
