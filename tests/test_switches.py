"""Kill switches: engaged and released by target, with a history, in or out of a transaction."""

from __future__ import annotations

import asyncio
import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction
from django.db.models import ProtectedError
from django.utils import timezone

from token_allowance import allowance
from token_allowance.models import Limit, ModelAlias, Price, Switch, SwitchEvent
from token_allowance.switches import close_ended

GPT: dict[str, Any] = {"provider": "openai", "model": "gpt-5-mini", "tenant": "acme", "user": "ana"}


@pytest.fixture(autouse=True)
def price(transactional_db: None) -> None:
    Price.objects.create(
        provider="openai", model="gpt-5-mini", input_mtok=Decimal(1), output_mtok=Decimal(1)
    )


def stopped(**attribution: Any) -> bool:
    try:
        with allowance.call(**(GPT | attribution)) as call:
            call.release()
    except allowance.SwitchEngaged:
        return True
    return False


@pytest.mark.parametrize(
    ("target", "hits", "spares"),
    [
        ({"everything": True}, {}, None),
        ({"tenant": "acme"}, {}, {"tenant": "globex"}),
        ({"feature": "agent"}, {"feature": "agent"}, {"feature": "chat"}),
        ({"model": "gpt-5-mini"}, {}, None),
        (
            {"tenant": "acme", "feature": "x"},
            {"feature": "x"},
            {"tenant": "globex", "feature": "x"},
        ),
    ],
)
def test_a_switch_stops_what_it_names(
    target: dict[str, Any], hits: dict[str, Any], spares: dict[str, Any] | None
) -> None:
    allowance.engage(**target, reason="loop", by="ana")
    assert stopped(**hits)
    assert spares is None or not stopped(**spares)
    assert allowance.disengage(**target, by="ana")
    assert not stopped(**hits)


def test_the_shorthand_is_split_at_the_first_colon() -> None:
    allowance.engage("feature:a:b", reason="loop", by="ana")
    assert stopped(feature="a:b")
    allowance.engage("global", reason="all", by="ana")
    assert stopped()


@pytest.mark.parametrize("text", ["agent", "colour:red", "feature:", "everything"])
def test_an_unclear_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"target|value"):
        allowance.engage(text, reason="loop", by="ana")


def test_neither_nothing_nor_both_is_a_target() -> None:
    with pytest.raises(ValueError, match="everything=True"):
        allowance.engage(reason="loop", by="ana")
    with pytest.raises(ValueError, match="everything=True"):
        allowance.engage("global", tenant="acme", reason="loop", by="ana")


def test_a_reason_is_needed() -> None:
    with pytest.raises(ValueError, match="reason"):
        allowance.engage("global", reason=" ", by="ana")


def test_history_is_kept_and_a_second_engagement_replaces_the_first() -> None:
    allowance.engage("feature:agent", reason="loop", by="ana")
    allowance.engage("feature:agent", reason="still", by="bob", minutes=5)
    assert Switch.objects.get().reason == "still"
    allowance.disengage("feature:agent", by="eve", reason="fixed")
    assert not allowance.disengage("feature:agent", by="eve")
    allowance.engage("feature:agent", reason="again", by="ana")
    assert history() == [
        ("engaged", "ana", "loop"),
        ("engaged", "bob", "still"),
        ("released", "eve", "fixed"),
        ("engaged", "ana", "again"),
    ]
    assert Switch.objects.count() == 2


def history() -> list[tuple[str, str, str]]:
    return list(SwitchEvent.objects.values_list("action", "by", "reason"))


def test_history_tells_how_the_switch_stood() -> None:
    allowance.engage("feature:agent", reason="loop", by="ana", cut_streams=True, percent=90)
    allowance.engage("feature:agent", reason="better", by="ana", minutes=5, percent=50)
    allowance.disengage("feature:agent", by="eve")
    stood = SwitchEvent.objects.values_list("percent", "cuts_streams", "ends_at")
    end = Switch.objects.get().ends_at
    assert end is not None
    assert list(stood) == [(90, True, None), (50, False, end), (50, False, end)]


def test_history_is_append_only() -> None:
    allowance.engage("global", reason="loop", by="ana")
    event = SwitchEvent.objects.get()
    event.reason = "another"
    rows = SwitchEvent.objects.all()
    for change in (event.save, event.delete, rows.delete, lambda: rows.update(by="nobody")):
        with pytest.raises(ValueError, match="append-only"):
            change()
    with pytest.raises(ProtectedError):
        Switch.objects.get().delete()
    assert history() == [("engaged", "ana", "loop")]


def test_a_switch_ends_by_itself_and_the_next_one_is_another(monkeypatch: Any) -> None:
    allowance.engage("tenant:acme", reason="loop", by="ana", minutes=30)
    assert stopped()
    first = Switch.objects.get()
    assert first.ends_at is not None
    after = first.ends_at + dt.timedelta(seconds=1)
    monkeypatch.setattr("django.utils.timezone.now", lambda: after)
    assert not stopped()
    assert not allowance.disengage("tenant:acme", by="bob")
    allowance.engage("tenant:acme", reason="again", by="bob")
    assert stopped()
    first.refresh_from_db()
    assert (first.released_at, first.reason) == (first.ends_at, "loop")
    assert Switch.objects.get(released_at=None).engaged_at == after
    assert history() == [
        ("engaged", "ana", "loop"),
        ("released", "by itself", "its time was over"),
        ("engaged", "bob", "again"),
    ]


def test_what_has_ended_by_itself_is_written_down_once() -> None:
    for target in ("tenant:acme", "feature:agent"):
        allowance.engage(target, reason="loop", by="ana", minutes=30)
    allowance.engage("global", reason="loop", by="ana")
    now = timezone.now()
    later = now + dt.timedelta(minutes=31)
    assert [close_ended(moment) for moment in (now, later, later)] == [0, 2, 0]
    assert [event[:2] for event in history()[3:]] == [("released", "by itself")] * 2
    assert list(Switch.objects.filter(released_at=None).values_list("feature")) == [("",)]


@pytest.mark.parametrize(
    "how",
    [{"minutes": 0}, {"minutes": -5}, {"minutes": float("nan")}, {"percent": 0}, {"percent": 101}],
)
def test_a_switch_that_would_stop_nobody_is_refused(how: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"minutes|percent"):
        allowance.engage("global", reason="loop", by="ana", **how)
    assert not Switch.objects.exists()


@pytest.mark.parametrize("percent", ["50", 50.0, True, None])
def test_a_part_of_the_callers_is_a_whole_number(percent: Any) -> None:
    with pytest.raises(ValueError, match="percent"):
        allowance.engage("global", reason="loop", by="ana", percent=percent)


def test_a_part_of_the_callers_are_always_the_same() -> None:
    users = [f"user-{number}" for number in range(200)]
    allowance.engage("feature:agent", reason="drill", by="ana", percent=10)
    few = {user for user in users if stopped(user=user, feature="agent")}
    assert few == {user for user in users if stopped(user=user, feature="agent", session="s")}
    assert not any(stopped(user=user, feature="chat") for user in few)
    allowance.engage("feature:agent", reason="let a tenth go first", by="ana", percent=90)
    many = {user for user in users if stopped(user=user, feature="agent")}
    assert 5 <= len(few) < 50 < len(many) < len(users)
    assert few < many


def test_a_switch_outlives_the_caller_s_rollback() -> None:
    with transaction.atomic():
        allowance.engage("global", reason="loop", by="ana")
        transaction.set_rollback(True)
    assert stopped()


def test_a_coroutine_can_pull_it_too() -> None:
    async def pull() -> bool:
        await allowance.aengage("global", reason="loop", by="ana")
        return await allowance.adisengage("global", by="ana")

    assert asyncio.run(pull())


def test_a_long_reason_does_not_stop_a_stop() -> None:
    allowance.engage("global", reason="Traceback\x00" * 200, by="ana" * 200)
    assert stopped()


def test_two_people_may_pull_the_same_switch_at_once() -> None:
    def pull(who: int) -> None:
        allowance.engage("feature:agent", reason="loop", by=who)

    with ThreadPoolExecutor(8) as people:
        list(people.map(pull, range(8)))
    assert Switch.objects.count() == 1
    assert SwitchEvent.objects.count() == 8


@pytest.mark.parametrize("name", ["gpt-5-mini-2025-08-07", "gpt-5-mini-latest", "my-deploy"])
def test_no_name_of_a_model_goes_round_its_switch_or_its_limit(name: str) -> None:
    ModelAlias.objects.create(alias="my-deploy", provider="openai", model="gpt-5-mini")
    for target in ("gpt-5-mini", name):
        allowance.engage(model=target, reason="loop", by="ana")
        assert stopped(model=name)
        assert stopped()
        with pytest.raises(allowance.SwitchEngaged):
            allowance.admit(tenant="acme", user="ana", model=name)
        allowance.disengage(model=target, by="ana")
        limit = Limit.objects.create(model=target, unit="calls", amount=0)
        with pytest.raises(allowance.AllowanceExceeded), allowance.call(**(GPT | {"model": name})):
            pass
        assert [b.amount for b in allowance.remaining(model=name)] == [0]
        limit.delete()
