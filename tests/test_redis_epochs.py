"""What happens in one process while another thread of it, or another process, begins an epoch."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests import redis_stores
from tests.redis_rules import process, shared
from tests.stores import NOW, budget, charge, figures, request, reserve, rows, spent, unspent
from token_allowance.models import PendingSettlement
from token_allowance.stores.base import Outcome
from token_allowance.stores.redis import drainage, ends, pending, questions, recovery

__all__ = ["shared"]

DAY = budget(amount=1000)


def meanwhile_another_epoch(monkeypatch, store, module, name):
    """Between naming the keys of the next question and sending it, a thread meets a new epoch."""
    made, met = getattr(module, name), []

    def meet():
        with process(store) as other:
            other.drain()
            other.turned_back()
            charge(other, DAY, cost=1)
            recovery.adopt(store, other.asking.names.epoch)

    def once(*given):
        question = made(*given)
        if not met:
            met.append(threading.Thread(target=meet))
            met[0].start()
            met[0].join(20)
        return question

    monkeypatch.setattr(module, name, once)


def test_a_call_is_held_in_the_epoch_whose_keys_it_names(shared, monkeypatch):
    charge(shared, DAY, cost=100)
    asked = request(DAY, cost=50)
    meanwhile_another_epoch(monkeypatch, shared, questions, "reserve")
    assert reserve(shared, asked).outcome is Outcome.ADMITTED
    assert figures(shared, DAY) == [(101, 50)]
    assert shared.settle(spent(asked, 40)) is Outcome.SETTLED
    assert figures(shared, DAY) == [(141, 0)]
    assert shared.rebuild(NOW) == []


def test_a_call_is_settled_in_the_epoch_whose_keys_it_names(shared, monkeypatch):
    charge(shared, DAY, cost=100)
    asked = request(DAY, cost=50)
    reserve(shared, asked)
    meanwhile_another_epoch(monkeypatch, shared, ends, "question")
    assert shared.settle(spent(asked, 40)) is Outcome.SETTLED
    assert figures(shared, DAY) == [(141, 0)]
    assert shared.rebuild(NOW) == []


def test_a_coroutine_holds_in_the_epoch_whose_keys_it_names(shared, monkeypatch):
    charge(shared, DAY, cost=100)

    async def ask():
        for _ in range(20):  # until the loop has a connection of its own
            asked = request(DAY, cost=1)
            if await shared.areserve(asked):
                await shared.asettle(spent(asked, 1))
        before = (await asyncio.to_thread(figures, shared, DAY))[0][0]
        asked = request(DAY, cost=50)
        meanwhile_another_epoch(monkeypatch, shared, questions, "reserve")
        if await shared.areserve(asked) is None:
            await asyncio.to_thread(reserve, shared, asked)
        return before

    before = asyncio.run(ask())
    assert figures(shared, DAY) == [(before + 1, 50)]
    assert shared.rebuild(NOW) == []


@pytest.mark.parametrize("known", [True, False], ids=["held in the ledger", "lost altogether"])
def test_a_settlement_that_was_kept_is_kept_until_the_ledger_has_it(shared, monkeypatch, known):
    asked = request(DAY, cost=300)
    reserve(shared, asked)
    if known:
        shared.drain()
    assert pending.keep(shared.alias, spent(asked, 250))
    drain = drainage.drain

    def forgotten(store, **given):
        monkeypatch.setattr(drainage, "drain", drain)
        redis_stores.clear(store)
        return drain(store, **given)

    monkeypatch.setattr(drainage, "drain", forgotten)
    shared.drain()
    for _ in range(2):
        with process(shared) as other:
            other.drain()
    assert rows(shared)[asked.id]["cost_micros"] == 250
    assert figures(shared, DAY) == [(250, 0)]
    assert not PendingSettlement.objects.exists()


@pytest.mark.parametrize("how", [spent, unspent])
def test_a_settlement_that_was_kept_is_applied_also_to_a_call_that_has_expired(shared, how):
    asked = request(DAY, cost=300)
    reserve(shared, asked)
    redis_stores.let_pass(shared, 601)
    assert shared.expire(NOW, charge=False) == 1
    assert pending.keep(shared.alias, how(asked))
    shared.drain()
    assert rows(shared)[asked.id]["state"] == ("settled" if how is spent else "expired")
    assert figures(shared, DAY) == [(0, 0)]
    assert not PendingSettlement.objects.exists()
