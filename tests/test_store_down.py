"""A store that cannot be asked: before a call, between its begin and its end, and afterwards."""

from __future__ import annotations

import asyncio
import time

import pytest

from project.provider import Reply
from tests.metering import RESERVED, SDKS, FlakyStore, Lab, create, micros
from token_allowance import allowance, policy
from token_allowance.exceptions import CapExceeded, StoreUnavailable

pytestmark = pytest.mark.django_db(transaction=True)

sdks = pytest.mark.parametrize("sdk", SDKS)
FIXED = Reply(input_tokens=40, output_tokens=9)
REFUSING = [
    {},
    {"MODE": "enforce"},
    {"ON_STORE_ERROR": "refuse"},
    {"MODE": "observe", "ON_STORE_ERROR": "refuse"},
]
ADMITTING = [
    {"MODE": "observe"},
    {"ON_STORE_ERROR": "admit"},
    {"MODE": "observe", "ON_STORE_ERROR": "admit"},
]


def down(*operations: str) -> None:
    FlakyStore.down = set(operations)


@pytest.fixture(params=["policy in mind", "policy unreadable"])
def blind(request, monkeypatch):
    """Take the database away as a whole, or only the counters."""

    def take_away() -> None:
        down("reserve", "settle", "usage", "extend")
        if request.param == "policy unreadable":
            monkeypatch.setattr(policy, "current", _unreadable)
            monkeypatch.setattr(policy, "confirmed", _unreadable)

    def give_back() -> None:
        down()
        monkeypatch.undo()

    return take_away, give_back


def _unreadable():
    raise StoreUnavailable("the database is down, as the test says")


@sdks
@pytest.mark.parametrize("settings", REFUSING, ids=str)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_refused_while_the_store_is_down_case_c57(sdk, settings, asynchronous):
    with Lab(**settings) as lab:
        lab.provider.script(default=FIXED)
        down("reserve")
        began = time.monotonic()
        with pytest.raises(StoreUnavailable) as caught:
            lab.ask(sdk, asynchronous=asynchronous, sdk={"max_retries": 2})
        assert type(caught.value) is StoreUnavailable
        assert (caught.value.status, caught.value.retry_after_seconds) == (503, 5)
        assert lab.store.asked == {"reserve": 1}
        assert time.monotonic() - began < 5
        assert lab.requests() == 0
        down()
        assert lab.rows() == []
        assert lab.figures() == {"cost": (0, 0), "tokens": (0, 0), "calls": (0, 0)}


@sdks
@pytest.mark.parametrize("settings", ADMITTING, ids=str)
def test_admitted_while_the_store_is_down_and_charged_once_it_is_back_case_c57(
    sdk, settings, blind
):
    take_away, give_back = blind
    with Lab(**settings) as lab:
        lab.provider.script(default=FIXED)
        lab.ask(sdk)  # the counters are open
        take_away()
        with allowance.charge_to(tenant="acme", trace_id="t"):
            lab.ask(sdk)
        assert lab.requests() == 2
        give_back()
        assert len(lab.rows()) == 1
        lab.ask(sdk, stream=True)
        rows = lab.rows(3)
        assert [row.cost_micros for row in rows] == [micros(sdk, 40, 9)] * 3
        row = rows[1]
        assert set(row.flags) == {"unmetered_admission", "late"}
        assert (row.tenant, row.trace_id, row.state) == ("acme", "t", "settled")
        assert row.provider_request_id
        assert lab.figures() == {
            "cost": (3 * micros(sdk, 40, 9), 0),
            "tokens": (3 * 49, 0),
            "calls": (3, 0),
        }


def test_admitted_calls_that_used_nothing_or_what_nobody_knows():
    with Lab(ON_STORE_ERROR="admit") as lab:
        lab.ask("openai")
        used = lab.row().cost_micros
        lab.provider.script([Reply(status=500), Reply(hang=True), FIXED])
        down("reserve", "settle")
        for options in ({}, {"timeout": 0.2}):
            with pytest.raises(Exception, match=r"."):
                lab.ask("openai", sdk=options)
        down()
        lab.ask("openai")
        released, uncertain = lab.rows(4)[1:3]
        assert (released.state, released.cost_micros) == ("released", None)
        assert (uncertain.state, uncertain.cost_micros) == ("settled", RESERVED["openai"])
        assert "uncertain" in uncertain.flags
        assert lab.figures()["cost"] == (used + RESERVED["openai"] + 58, 0)


def test_the_store_is_back_before_the_call_ends():
    with Lab(ON_STORE_ERROR="admit") as lab, lab.client("openai") as client:
        lab.provider.script([FIXED, FIXED])
        create(client)
        down("reserve")
        create(client)
        assert [row.flags for row in lab.rows(2)] == [[], ["late", "unmetered_admission"]]
        assert lab.figures()["calls"] == (2, 0)


def test_a_cap_holds_although_the_store_is_down():
    with Lab(ON_STORE_ERROR="admit") as lab, lab.client("openai") as client:
        lab.provider.script(default=FIXED)
        down("reserve", "settle")
        with allowance.charge_to(max_calls=2):
            create(client)
            create(client)
            with pytest.raises(CapExceeded):
                create(client)
        down()
        create(client)
        assert lab.requests() == len(lab.rows(3)) == 3


def test_admit_refuses_where_calls_are_refused():
    with Lab() as lab:
        down("usage")
        with pytest.raises(StoreUnavailable):
            allowance.admit()
        with pytest.raises(StoreUnavailable):
            asyncio.run(allowance.aadmit())
        assert lab.rows() == []


def test_admit_admits_where_calls_are_admitted():
    with Lab(ON_STORE_ERROR="admit"):
        down("usage")
        allowance.admit()
        asyncio.run(allowance.aadmit())
        with pytest.raises(StoreUnavailable):
            allowance.remaining()


@sdks
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_an_answer_is_returned_although_it_cannot_be_settled_and_is_charged_later_once(
    sdk, stream, asynchronous
):
    with Lab() as lab:
        lab.provider.script(default=FIXED)
        down("settle")
        answer = lab.ask(sdk, stream=stream, asynchronous=asynchronous)
        assert answer
        assert lab.figures()["cost"] == (0, RESERVED[sdk])
        down()
        lab.ask(sdk)
        lab.ask(sdk)
        assert lab.ended() == [("settled", [], micros(sdk, 40, 9))] * 3
        assert lab.figures()["cost"] == (3 * micros(sdk, 40, 9), 0)


def test_a_charge_that_waited_is_added_to_what_was_used_meanwhile_case_c48():
    with Lab() as lab:
        call = {"provider": "openai", "model": "gpt-5-mini", "max_output_tokens": 0}
        with allowance.call(**call, input_tokens=10) as first:
            first.record(allowance.Usage(10))
        with allowance.call(**call, input_tokens=4) as second:
            second.record(allowance.Usage(3))
            down("settle")
        assert lab.figures()["cost"] == (10, 4)
        down()
        with allowance.call(**call, input_tokens=1) as third:
            third.release()
        assert lab.figures()["cost"] == (13, 0)


@pytest.mark.django_db(databases=["default", "sqlite"], transaction=True)
def test_the_same_on_sqlite():
    with Lab("sqlite", ON_STORE_ERROR="admit") as lab:
        lab.provider.script(default=FIXED)
        down("reserve", "settle")
        lab.ask("openai")
        down("settle")
        lab.ask("openai")
        down()
        lab.ask("openai")
        flags = [set(row.flags) for row in lab.rows(3)]
        assert flags == [{"unmetered_admission", "late"}, set(), set()]
        assert lab.figures()["cost"] == (3 * 58, 0)
