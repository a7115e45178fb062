"""An operator's corrections: which budgets they reach, and what stays in the books."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.utils import timezone

from tests.stores import ALIASES, NOW, configured, hold, own_pool, spend, used
from token_allowance import allowance, conf, testing
from token_allowance.adjustments import signed
from token_allowance.exceptions import AllowanceExceeded
from token_allowance.limits import Unit
from token_allowance.models import Adjustment, Limit, ModelAlias, Reservation
from token_allowance.usage import Usage

Clock = Callable[[dt.datetime], None]
WHY: dict[str, Any] = {"reason": "runaway loop", "by": "ana"}
MEMORY = {"STORE": {"BACKEND": "token_allowance.stores.memory.MemoryStore"}}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Sets the application's clock; before the first use it stands at NOW."""

    def set_to(moment: dt.datetime) -> None:
        monkeypatch.setattr(timezone, "now", lambda: moment)

    set_to(NOW)
    return set_to


@pytest.fixture(params=[*ALIASES, "memory"])
def alias(
    request: pytest.FixtureRequest, databases: None, django_db_blocker: Any, settings: Any
) -> Iterator[str]:
    """The database of the limits; the budgets are counted there or in memory."""
    alias = ALIASES.get(request.param, "default")
    settings.TOKEN_ALLOWANCE = MEMORY if request.param == "memory" else configured(alias)
    with django_db_blocker.unblock(), own_pool(alias):
        yield alias


def limit(alias: str, amount: int = 50, unit: str = "tokens", **rule: Any) -> Limit:
    named = rule if {"tenant", "user", "feature"} & set(rule) else {"user": "*", **rule}
    return Limit.objects.using(alias).create(**{"window": "day", **named}, unit=unit, amount=amount)


def changed(**given: Any) -> list[tuple[str, str, str, int, int, int]]:
    done = allowance.adjust(**WHY, **given)
    return [(d.scope, d.window, d.unit, d.amount, d.used, d.available) for d in done]


def refused(tokens: int = 1) -> bool:
    try:
        hold(tokens, user="u").release()
    except AllowanceExceeded:
        return True
    return False


def test_c68_each_day_admits_anew_and_an_operators_reset_is_an_adjustment(
    database: str, clock: Clock
) -> None:
    """No job runs. A limit of 5 a day, 5 spent each day, a reset at noon on the second."""
    limit(database, 5)
    for day in range(3):
        clock(NOW.replace(hour=0, minute=0) + dt.timedelta(days=day))
        assert used(user="u") == [(0, 0, 5)]
        spend(5, user="u")
        assert refused()
        if day != 1:
            continue
        clock(NOW.replace(hour=12, minute=0) + dt.timedelta(days=day))
        assert changed(user="u", reset=True) == [("user", "day", "tokens", -5, 0, 5)]
        spend(5, user="u")
        assert refused()
    conf.store().drain()
    conf.store().drain()
    assert Reservation.objects.using(database).filter(state="settled").count() == 4
    (row,) = Adjustment.objects.using(database).all()
    assert (row.amount, row.unit, row.user, row.reason, row.by) == (
        -5, "tokens", "u", "runaway loop", "ana",
    )  # fmt: skip
    assert row.created_at == NOW.replace(hour=12, minute=0) + dt.timedelta(days=1)
    assert row.key.endswith(f"|{row.created_at:%Y%m%d}T000000Z")
    assert conf.store().rebuild(NOW + dt.timedelta(days=1)) == []


def test_c68_a_reset_reaches_all_windows_and_units_of_that_budget_and_no_other(alias: str) -> None:
    limit(alias, 50)
    limit(alias, 400, window="month")
    limit(alias, 9, unit="calls")
    limit(alias, 1000, tenant="*")
    limit(alias, 50, tenant="*", user="*")
    for user in ("u", "v"):
        spend(40, user=user, tenant="acme")
    assert sorted(changed(user="u", reset=True)) == [
        ("user", "day", "calls", -1, 0, 9),
        ("user", "day", "tokens", -40, 0, 50),
        ("user", "month", "tokens", -40, 0, 400),
    ]
    assert used(user="v") == [(1, 0, 8), (40, 0, 10), (40, 0, 360)]
    assert used(tenant="acme") == [(80, 0, 920)]
    assert changed(tenant="acme", user="u", amount=-15, unit="tokens") == [
        ("user", "day", "tokens", -15, 25, 25)
    ]


def test_unit_window_and_limit_choose_among_the_budgets(alias: str) -> None:
    limit(alias, 50)
    month = limit(alias, 400, window="month")
    limit(alias, 9, unit="calls")
    spend(10, user="u")
    assert changed(user="u", amount=5, unit="calls") == [("user", "day", "calls", 5, 6, 3)]
    assert changed(user="u", amount="-4", unit="tokens", window="month") == [
        ("user", "month", "tokens", -4, 6, 394)
    ]
    assert changed(user="u", limit=month, reset=True) == [("user", "month", "tokens", -6, 0, 400)]
    assert changed(user="u", limit=month.pk, reset=True) == [("user", "month", "tokens", 0, 0, 400)]


def test_dollars_are_given_back_and_no_more_than_was_used(alias: str) -> None:
    limit(alias, 5_000_000, unit="cost")
    assert changed(user="u", amount="3.20") == [
        ("user", "day", "cost", 3_200_000, 3_200_000, 1_800_000)
    ]
    assert changed(user="u", amount=Decimal("-1.25"))[0][3:] == (-1_250_000, 1_950_000, 3_050_000)
    assert changed(user="u", amount=-100)[0][3:] == (-1_950_000, 0, 5_000_000)


def test_the_budget_of_all_calls_together_is_asked_for_by_that_word(alias: str) -> None:
    limit(alias, 70, user="")
    limit(alias, 50)
    spend(20, user="u")
    assert changed(everything=True, reset=True) == [("global", "day", "tokens", -20, 0, 70)]
    assert used(user="u") == [(20, 0, 30), (0, 0, 70)]


def test_a_model_is_meant_by_any_of_its_names(alias: str) -> None:
    ModelAlias.objects.using(alias).create(alias="house", provider="openai", model="m-1")
    limit(alias, 70, user="", model="*")
    spend(20, model="m-1")
    assert changed(model="house", reset=True) == [("model", "day", "tokens", -20, 0, 70)]


def test_a_call_that_ends_after_a_reset_is_charged_as_ever(alias: str) -> None:
    limit(alias, 50)
    spend(20, user="u")
    open_call = hold(25, user="u")
    (done,) = allowance.adjust(user="u", reset=True, **WHY)
    assert (done.used, done.reserved, done.available) == (0, 25, 25)
    open_call.settle(Usage(24))
    assert used(user="u") == [(24, 0, 26)]


def test_it_can_be_awaited(alias: str) -> None:
    limit(alias, 50)
    spend(20, user="u")
    (done,) = async_to_sync(allowance.aadjust)(user="u", reset=True, **WHY)
    assert (done.amount, done.used) == (-20, 0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"reset": True}, "whose budget"),
        ({"user": "u", "everything": True, "reset": True}, "whose budget"),
        ({"user": "u"}, "either amount= or reset"),
        ({"user": "u", "amount": 1, "reset": True}, "either amount= or reset"),
        ({"user": "u", "amount": 0}, "by 0"),
        ({"user": "u", "amount": "1.5", "unit": "tokens"}, "whole numbers"),
        ({"user": "u", "amount": "NaN"}, "finite"),
        ({"user": "u", "amount": "--5"}, "negative"),
        ({"user": "u", "amount": 1, "unit": "euros"}, "euros"),
        ({"user": "u", "amount": 1, "window": "dy"}, "dy"),
        ({"user": "*", "amount": 1}, "is not a value"),
        ({"user": "u", "amount": 1, "reason": " "}, "needs reason="),
        ({"user": "u", "amount": 1, "by": None}, "needs by="),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        allowance.adjust(**{**WHY, **given})


def test_a_float_is_no_amount() -> None:
    with pytest.raises(TypeError):
        signed(-1.5, Unit.COST)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        signed(True, Unit.CALLS)


def test_where_no_budget_is_meant_it_says_which_there_are(alias: str) -> None:
    limit(alias, 50, tenant="*", user="*")
    limit(alias, 50, tenant="*")
    limit(alias, 50)
    with pytest.raises(ValueError, match="exactly tenant acme, window month") as caught:
        allowance.adjust(tenant="acme", window="month", reset=True, **WHY)
    assert "counted in budgets of: tenant." in str(caught.value)
    assert "also look at the user: name them too" in str(caught.value)
    assert not Adjustment.objects.using(alias).exists()


def run(*words: str) -> str:
    out = StringIO()
    call_command("allowance", "adjust", *words, "--reason", "refund", "--by", "ana", stdout=out)
    return out.getvalue()


def test_the_command_says_what_it_has_changed(alias: str) -> None:
    limit(alias, 5_000_000, unit="cost")
    limit(alias, 9_000, window="rolling", rolling_seconds=86_400)
    assert run("--user", "u", "--amount", "2.50") == (
        "user daily cost: +$2.50; now $2.50 used, $2.50 available.\n"
    )
    assert run("--user", "u", "--amount", "-0.5") == (
        "user daily cost: -$0.50; now $2.00 used, $3.00 available.\n"
    )
    testing.spend(1_200, unit="tokens", user="u")
    assert run("--user", "u", "--reset").splitlines() == [
        "user daily cost: -$2.00; now $0.00 used, $5.00 available.",
        "user rolling 24-hour tokens: -1,200; now 0 used, 9,000 available.",
    ]
    assert "nothing to take off" in run("--user", "u", "--reset", "--unit", "cost")


def test_the_command_refuses_what_it_does_not_understand(alias: str) -> None:
    with pytest.raises(CommandError, match="there is no budget of exactly user u"):
        run("--user", "u", "--reset")
    with pytest.raises(CommandError, match="not an amount"):
        run("--user", "u", "--amount", "five")
