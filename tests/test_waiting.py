"""Waiting for room that calls in flight hold: who is served, who is refused, and what is left."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.conf import LazySettings

from tests.metering import cancelled, within
from tests.stores import used
from tests.waiters import aask, admitted_at_once, ask, asking, both, call, in_flight, stands, wait
from token_allowance import allowance, conf
from token_allowance.exceptions import AllowanceExceeded, CapExceeded, SwitchEngaged, TooLarge
from token_allowance.models import Limit
from token_allowance.usage import Usage


@both
def test_a_call_waits_until_there_is_room(tries: list[Any], asynchronous: bool) -> None:
    with call(80) as first, asking(80, asynchronous) as second:
        assert within(stands(tries))
        assert not second.done()
        first_left = time.monotonic()
        first.release()
        assert second.result(5) >= first_left
    assert used(tenant="acme") == [(1, 0, 99)]


@both
def test_the_deadline_passes_with_a_short_time_to_try_again(
    limit: Limit, settings: LazySettings, asynchronous: bool
) -> None:
    wait(settings, 0.3)
    with call(80) as first:
        began = time.monotonic()
        with asking(80, asynchronous) as second:
            error = second.exception(5)
        assert time.monotonic() - began >= 0.3
        assert type(error) is AllowanceExceeded
        assert (error.reason, error.status) == ("held", 429)
        assert error.retry_after_seconds is not None
        assert 1 <= error.retry_after_seconds <= 5
        assert "in flight" in str(error)
        assert "waited 0." in str(error)
        ask(20)  # at once: nobody stands in line any more
        first.record(Usage(5))
    assert used(tenant="acme") == [(6, 0, 94)]


def test_without_waiting_a_call_is_refused_at_once(limit: Limit, settings: LazySettings) -> None:
    wait(settings, 0)
    with call(80), pytest.raises(AllowanceExceeded) as caught:
        ask(80)
    assert caught.value.reason == "held"
    assert "waited" not in str(caught.value)


def test_what_waiting_cannot_help_is_refused_at_once(limit: Limit, tries: list[Any]) -> None:
    began = time.monotonic()
    with pytest.raises(TooLarge):
        ask(101)
    ask(60, 60)
    with pytest.raises(AllowanceExceeded) as caught:
        ask(60)
    assert caught.value.reason == "exhausted"
    with allowance.charge_to(max_calls=1), pytest.raises(CapExceeded), call(1):
        ask(1)
    assert time.monotonic() - began < 3
    assert not stands(tries)()


@both
def test_a_call_is_refused_at_once_if_those_it_is_made_in_hold_the_room(
    limit: Limit, tries: list[Any], asynchronous: bool
) -> None:
    async def nested() -> None:
        async with call(30), call(30):
            await aask(60)

    began = time.monotonic()

    def nested_in_turn() -> None:
        with call(30), call(30):
            ask(60)

    with pytest.raises(AllowanceExceeded) as caught:
        asyncio.run(nested()) if asynchronous else nested_in_turn()
    assert time.monotonic() - began < 3
    assert caught.value.reason == "held"
    assert "it is made in" in str(caught.value)
    assert not stands(tries)()


def test_a_call_waits_for_others_inside_a_call_that_leaves_it_room(tries: list[Any]) -> None:
    with call(30) as other, ThreadPoolExecutor(1) as thread:
        nested = thread.submit(in_another, 30, 60)
        assert within(stands(tries))
        other.release()
        assert nested.result(5) == "admitted"


def in_another(outer: int, inner: int) -> str:
    with call(outer):
        ask(inner)
    return "admitted"


def test_a_cancelled_call_leaves_nothing_behind(limit: Limit, tries: list[Any]) -> None:
    async def leave() -> None:
        await cancelled(aask(80), after=stands(tries))

    with in_flight(80) as first:
        asyncio.run(leave())
        first.record(Usage(10))
        assert within(lambda: admitted_at_once(20))
    assert used(tenant="acme")[0][1] == 0
    asked = len(tries)
    time.sleep(0.6)
    assert len(tries) == asked


def test_a_call_cancelled_while_it_is_let_in_gives_its_hold_back(
    limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, trying, go = type(conf.store()), threading.Event(), threading.Event()
    original, tickets = kind.reserve, []

    def reserve(store: Any, request: Any) -> Any:
        tickets.append(request.ticket)
        if tickets.count(request.ticket) == 2:
            trying.set()
            assert go.wait(5)
        return original(store, request)

    async def leave() -> None:
        await cancelled(aask(80), after=trying.is_set)
        first.release()
        go.set()

    with in_flight(80) as first:
        monkeypatch.setattr(kind, "reserve", reserve)
        asyncio.run(leave())
    assert within(lambda: used(tenant="acme") == [(0, 0, 100)])
    ask(100)


def test_waiting_coroutines_keep_no_other_from_the_store(tries: list[Any]) -> None:
    async def many() -> float:
        waiting = [asyncio.ensure_future(aask(80)) for _ in range(30)]
        assert await asyncio.to_thread(within, stands(tries, 30))
        began = time.monotonic()
        await aask(80, tenant="globex")
        took = time.monotonic() - began
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return took

    with in_flight(80):
        assert asyncio.run(many()) < 1


def test_a_raised_limit_lets_in_who_waits(limit: Limit, tries: list[Any]) -> None:
    with call(80), asking(80) as second:
        assert within(stands(tries))
        limit.amount = 200
        limit.save()
        second.result(5)


def test_a_switch_stops_who_waits(limit: Limit, tries: list[Any]) -> None:
    with call(80) as first, asking(80) as second:
        assert within(stands(tries))
        allowance.engage(tenant="acme", reason="test", by="ada")
        assert type(second.exception(5)) is SwitchEngaged
        allowance.disengage(tenant="acme", reason="test", by="ada")
        first.release()
    ask(100)
