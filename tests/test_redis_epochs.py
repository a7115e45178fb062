"""What happens in one process while another thread of it, or another process, begins an epoch."""

from __future__ import annotations

import asyncio
import threading

from tests.redis_rules import process, shared
from tests.stores import NOW, budget, charge, figures, request, reserve, spent
from token_allowance.stores.base import Outcome
from token_allowance.stores.redis import ends, questions, recovery

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
            recovery.adopt(store, other.wire.epoch)

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
