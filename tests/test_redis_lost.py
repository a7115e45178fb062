"""What Redis lost by itself, one key of it, comes back whole from the ledger."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import redis_stores
from tests.stores import (
    NOW,
    budget,
    charge,
    figures,
    let_pass,
    lose,
    own_pool,
    request,
    reserve,
    row,
    rows,
)  # fmt: skip
from token_allowance import entries
from token_allowance.exceptions import StoreUnavailable
from token_allowance.stores import adjustments
from token_allowance.stores.base import Outcome
from token_allowance.stores.redis import RedisStore

DAY = budget(amount=1000)


@pytest.fixture
def store(databases: None, django_db_blocker) -> Iterator[RedisStore]:
    with django_db_blocker.unblock(), own_pool("default"), redis_stores.fresh() as made:
        yield made


def test_a_reservation_that_was_lost_can_be_extended_and_still_expires(store: RedisStore) -> None:
    asked = request(DAY, cost=40, tokens=10)
    reserve(store, asked)
    store.drain()
    names = store.asking.names
    store.wire.execute("DEL", names.reservation(asked.id))
    store.wire.execute("ZREM", names.leases, str(asked.id))
    store.forget(asked.id)
    lose(store, DAY)
    reserve(store, request(DAY, cost=1))  # counts the budget anew, with what is open in it
    more = request(DAY, cost=5, tokens=7, calls=0, id=asked.id)
    assert store.extend(more).outcome is Outcome.EXTENDED
    kept = row(store, asked)
    assert (kept["reserved_micros"], kept["reserved_tokens"]) == (45, 17)
    let_pass(store, 601)
    assert store.expire(NOW, charge=False) == 2
    assert figures(store, DAY) == [(0, 0)]


def test_an_adjustment_whose_maker_dies_is_counted_all_the_same(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge(store, budget(amount=1000, tenant="other"), cost=1)
    store.asking.names.opened_at = 0  # as if it had watched since before this window
    record = adjustments.record

    def dies(*given):
        record(*given)
        raise StoreUnavailable("killed")

    with monkeypatch.context() as patch:
        patch.setattr(adjustments, "record", dies)
        with pytest.raises(StoreUnavailable):
            store.adjust(
                DAY, 70, {"id": entries.new_id(), "reason": "r", "by": "ana", "created_at": NOW}
            )
    reserve(store, request(DAY, cost=1))
    assert figures(store, DAY) == [(71, 1)]
    assert len(rows(store)) == 2
