"""A switch is obeyed as last known while a store is down, also where calls go on (case C96)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.db import OperationalError
from django.test import override_settings

from tests import redis_stores
from token_allowance import allowance, conf, policy
from token_allowance.exceptions import StoreUnavailable, SwitchEngaged
from token_allowance.models import Price, SwitchEvent, Tenant

pytestmark = pytest.mark.django_db(transaction=True)

STORE = "token_allowance.stores.database.DatabaseStore"
both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def dead_redis(**settings: Any) -> dict[str, Any]:
    """Redis at an address where nobody answers; calls are let in all the same."""
    options = redis_stores.options() | {"URL": "redis://127.0.0.1:1/0"}
    store = {"BACKEND": "token_allowance.stores.redis.RedisStore", "OPTIONS": options}
    return {"STORE": store, "ON_STORE_ERROR": "admit", **settings}


@pytest.fixture(autouse=True)
def price() -> Iterator[None]:
    Price.objects.create(
        provider="openai", model="m", input_mtok=Decimal(1), output_mtok=Decimal(1)
    )
    with override_settings(
        TOKEN_ALLOWANCE={"STORE": {"BACKEND": STORE}, "ON_STORE_ERROR": "admit"}
    ):
        yield


def let_in(**attribution: Any) -> bool:
    given: dict[str, Any] = {"tenant": "7", "feature": "agent", **attribution}
    try:
        with allowance.call(provider="openai", model="m", input_tokens=1, **given) as call:
            assert "unmetered_admission" in call.reservation.row["flags"]
            call.reservation.leave()
        return True
    except SwitchEngaged:
        return False


async def alet_in(**attribution: Any) -> bool:
    given: dict[str, Any] = {"tenant": "7", "feature": "agent", **attribution}
    try:
        async with allowance.call(provider="openai", model="m", input_tokens=1, **given) as call:
            call.reservation.leave()
        return True
    except SwitchEngaged:
        return False


def down(*_: Any) -> Any:
    raise StoreUnavailable("the database is down") from OperationalError("gone")


@pytest.fixture
def database_down(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def go_down() -> None:
        for module in ("policy", "stores.database"):
            monkeypatch.setattr(f"token_allowance.{module}.run", down)

    return go_down


@both
def test_redis_is_down_and_the_database_knows_the_switch(asynchronous: bool) -> None:
    with override_settings(TOKEN_ALLOWANCE=dead_redis()):

        def asked(**attribution: Any) -> bool:
            return asyncio.run(alet_in(**attribution)) if asynchronous else let_in(**attribution)

        assert asked()
        allowance.engage("feature:agent", reason="spend", by="ops")
        assert not asked()
        assert asked(feature="chat")
        allowance.disengage("feature:agent", by="ops")
        assert asked()


def test_an_observed_tenant_is_not_stopped_by_it() -> None:
    Tenant.objects.create(key="7", mode="observe")
    allowance.engage("feature:agent", reason="spend", by="ops")
    with override_settings(TOKEN_ALLOWANCE=dead_redis()):
        assert let_in()
        assert not let_in(tenant="8")
    with override_settings(TOKEN_ALLOWANCE=dead_redis(MODE="observe")):
        assert let_in(tenant="8")


def test_the_database_is_down_and_the_switch_is_known(database_down: Callable[[], None]) -> None:
    allowance.engage("feature:agent", reason="spend", by="ops")
    assert policy.confirmed().switches
    database_down()
    assert not let_in()
    assert let_in(feature="chat")
    with pytest.raises(SwitchEngaged):
        allowance.admit(tenant="7", feature="agent")
    allowance.admit(tenant="7", feature="chat")


def test_the_database_is_down_and_nothing_is_known(
    database_down: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A switch may be engaged that this process has never heard of."""
    monkeypatch.setattr(policy, "_current", policy._Current())
    database_down()
    with pytest.raises(StoreUnavailable):
        let_in()
    with pytest.raises(StoreUnavailable):
        allowance.admit(tenant="7", feature="agent")


def test_a_switch_and_its_history_outlive_a_flush_of_redis() -> None:
    with (
        redis_stores.configured() as configuration,
        override_settings(TOKEN_ALLOWANCE=configuration),
    ):
        with allowance.call(provider="openai", model="m", input_tokens=1, feature="agent") as call:
            call.release()
        allowance.engage("feature:agent", reason="spend", by="ops")
        redis_stores.clear(conf.store())
        assert not let_in()
        redis_stores.clear(conf.store())
        allowance.disengage("feature:agent", by="ops")
        assert [*SwitchEvent.objects.values_list("action", flat=True)] == ["engaged", "released"]
