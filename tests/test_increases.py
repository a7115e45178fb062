"""More than a limit allows, for a while: who gets it, from when on and until which instant."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connections, transaction
from django.utils import timezone

from tests.stores import ALIASES, NOW, configured, hold, own_pool, spend, used
from token_allowance import allowance, policy
from token_allowance.exceptions import AllowanceExceeded, TooLarge
from token_allowance.increases import Increase
from token_allowance.limits import Attribution, Limit, open_budget
from token_allowance.models import Limit as LimitRow
from token_allowance.models import LimitIncrease
from token_allowance.money import MAX_MICROS

UNTIL = NOW + dt.timedelta(minutes=10)
TICK = dt.timedelta(microseconds=1)
MEMORY = {"STORE": {"BACKEND": "token_allowance.stores.memory.MemoryStore", "OPTIONS": {}}}
Clock = Callable[[dt.datetime], None]


@pytest.fixture(params=["memory", "postgresql", "sqlite"])
def alias(
    request: pytest.FixtureRequest,
    databases: None,
    django_db_blocker: Any,
    settings: LazySettings,
) -> Iterator[str]:
    """The database with the limits, for each store in turn."""
    alias = ALIASES.get(request.param, "default")
    settings.TOKEN_ALLOWANCE = MEMORY if request.param == "memory" else configured(alias)
    with django_db_blocker.unblock(), own_pool(alias):
        yield alias


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Sets the application's clock; before the first use it stands at NOW."""

    def set_to(moment: dt.datetime) -> None:
        monkeypatch.setattr(timezone, "now", lambda: moment)

    set_to(NOW)
    return set_to


def limit(alias: str, amount: int = 50, **rule: Any) -> LimitRow:
    rule = {"tenant": "*", "unit": "tokens", **rule}
    return LimitRow.objects.using(alias).create(amount=amount, **rule)


def more(row: LimitRow, amount: int, alias: str = "", **given: Any) -> LimitIncrease:
    given = {"until": UNTIL, "reason": "a launch", "by": "ana", **given}
    made = LimitIncrease(limit=row, amount=amount, **given)
    made.save(using=row._state.db)
    return made


def refused(tokens: int, **attribution: str) -> AllowanceExceeded:
    with pytest.raises(AllowanceExceeded) as caught:
        hold(tokens, **attribution)
    return caught.value


def test_one_tenants_budget_is_raised_at_its_very_next_call_and_moves_no_counter(
    alias: str,
) -> None:
    row = limit(alias)
    for tenant in ("acme", "globex"):
        spend(50, tenant=tenant)
    assert refused(1, tenant="acme").amount == 50
    more(row, 20, tenant="acme")
    assert used(tenant="acme") == [(50, 0, 20)]
    assert allowance.remaining(tenant="acme")[0].amount == 70
    error = refused(21, tenant="acme")
    assert (error.amount, error.used, error.available) == (70, 50, 20)
    assert "50 of 70 tokens used" in str(error)
    spend(20, tenant="acme")
    assert used(tenant="acme") == [(70, 0, 0)]
    assert refused(1, tenant="globex").amount == 50


def test_it_ends_at_its_very_instant_with_no_job(alias: str, clock: Clock) -> None:
    more(limit(alias), 20, tenant="acme")
    spend(50, tenant="acme")
    clock(UNTIL - TICK)
    spend(5, tenant="acme")
    clock(UNTIL)
    assert refused(1, tenant="acme").amount == 50
    assert used(tenant="acme") == [(55, 0, 0)]


def test_several_add_up_and_one_without_a_name_is_everyones(alias: str, clock: Clock) -> None:
    row = limit(alias, user="*")
    more(row, 1)
    more(row, 2, tenant="acme")
    more(row, 4, user="u")
    more(row, 8, tenant="acme", user="u", until=UNTIL + TICK)

    def amounts() -> list[int]:
        callers = (("acme", "u"), ("acme", "v"), ("globex", "u"), ("globex", "v"))
        found = [allowance.remaining(tenant=t, user=u)[0].amount for t, u in callers]
        return [amount - 50 for amount in found]

    assert amounts() == [15, 3, 5, 1]
    clock(UNTIL)
    assert amounts() == [8, 0, 0, 0]


def test_a_call_that_was_too_large_fits_while_it_lasts(alias: str, clock: Clock) -> None:
    row = limit(alias, window="rolling", rolling_seconds=3600)
    assert isinstance(refused(60, tenant="acme"), TooLarge)
    more(row, 10, tenant="acme")
    hold(60, tenant="acme").release()
    clock(UNTIL)
    assert isinstance(refused(60, tenant="acme"), TooLarge)


@pytest.mark.parametrize("way", ["save", "bulk_create", "SQL"])
def test_whoever_writes_it_the_next_reserve_knows(alias: str, way: str) -> None:
    row = limit(alias)
    spend(50, tenant="acme")
    refused(1, tenant="acme")
    if way == "save":
        more(row, 3)
    elif way == "bulk_create":
        made = LimitIncrease(limit=row, amount=3, until=UNTIL)
        LimitIncrease.objects.using(alias).bulk_create([made])
    else:
        with connections[alias].cursor() as cursor:
            cursor.execute(
                'INSERT INTO token_allowance_limitincrease (limit_id, tenant, "user", amount, '
                "until, reason, by, created_at) VALUES (%s, '', '', 3, %s, '', '', %s)",
                [row.pk, *[connections[alias].ops.adapt_datetimefield_value(UNTIL)] * 2],
            )
    spend(3, tenant="acme")
    refused(1, tenant="acme")
    LimitIncrease.objects.using(alias).update(amount=4)
    spend(1, tenant="acme")
    LimitIncrease.objects.using(alias).all().delete()
    assert refused(1, tenant="acme").amount == 50


def test_only_what_concerns_the_call_is_loaded(alias: str) -> None:
    rows = [limit(alias), limit(alias, tenant="acme"), limit(alias, tenant="globex")]
    for row in rows:
        more(row, 1)
        more(row, 2, until=NOW)  # over
    for tenant in ("acme", "globex"):
        more(rows[0], 4, tenant=tenant)
    found = policy.confirmed().limits_for(Attribution(tenant="acme"))
    loaded = {rule.tenant: sorted(i.amount for i in rule.increases) for rule in found}
    assert loaded == {"*": [1, 4], "acme": [1]}


def test_it_starts_no_tracking_anew_and_goes_with_its_limit(alias: str) -> None:
    row = limit(alias)
    row.refresh_from_db()
    since = row.tracked_since
    more(row, 3)
    row.refresh_from_db()
    assert row.tracked_since == since
    row.delete()
    assert not LimitIncrease.objects.using(alias).exists()


@pytest.mark.parametrize("given", [{"amount": 0}, {"amount": -5}, {"amount": MAX_MICROS + 1},
                                   {"tenant": "*"}, {"user": "*"}])  # fmt: skip
def test_case_c73_only_more_than_nothing_for_somebody_is_possible(
    alias: str, given: dict[str, Any]
) -> None:
    row = limit(alias)
    with pytest.raises(IntegrityError), transaction.atomic(alias):
        more(row, **{"amount": 5, **given})


def test_an_increase_is_of_a_budget_that_the_limit_has(alias: str) -> None:
    row = limit(alias, tenant="acme", user="*")
    LimitIncrease(limit=row, amount=1, until=UNTIL, tenant="acme", user="u").full_clean()
    with pytest.raises(ValidationError, match="no budget of this tenant"):
        LimitIncrease(limit=row, amount=1, until=UNTIL, tenant="globex").full_clean()


def test_an_amount_never_passes_the_largest_integer_that_json_keeps() -> None:
    rule = Limit(amount=5, increases=(Increase(amount=MAX_MICROS, until=UNTIL),))
    assert open_budget(rule, {}, NOW).limit == Limit(amount=MAX_MICROS)


def test_a_limit_without_the_dimension_is_not_raised_for_one_value_of_it() -> None:
    rule = Limit(amount=5, increases=(Increase(amount=7, until=UNTIL, tenant="acme"),))
    assert open_budget(rule, {"tenant": "acme"}, NOW).limit.amount == 5
