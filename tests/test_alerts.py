"""Budgets that reach a rung of their ladder: each is told once, on every store."""

from __future__ import annotations

import datetime as dt

import pytest

from tests.alerting import DAY, HOUR, MINUTE, Clock, channel, limit, sent, told
from tests.stores import hold, spend
from token_allowance import allowance, conf
from token_allowance.alerts.evaluation import evaluate
from token_allowance.models import (
    Alert,
    AlertRule,
    Delivery,
    LimitIncrease,
    Reservation,
    Tenant,
)
from token_allowance.usage import Usage


def test_each_rung_is_told_when_it_is_reached_and_not_again(database: str, clock: Clock) -> None:
    """Case C83: limit 20.00; used 13.99, 14.00, 14.10, 18.00, 19.00, 20.00, 20.00."""
    limit(database)
    channel(database)
    fired = []
    for tokens in (1399, 1, 10, 390, 100, 100):
        spend(tokens, tenant="acme")
        fired.append(evaluate(clock.goes_on(MINUTE)))
    fired.append(evaluate(clock.goes_on(MINUTE)))
    assert fired == [0, 1, 0, 1, 0, 1, 0]
    assert told(database) == [(70, 1400), (90, 1800), (100, 2000)]
    assert sent(database) == ["fired"] * 3
    clock.goes_on(DAY)
    spend(100, tenant="acme")
    assert evaluate(clock.goes_on(MINUTE)) == 0
    spend(1300, tenant="acme")
    assert evaluate(clock.goes_on(MINUTE)) == 1
    assert told(database)[3:] == [(70, 1400)]


def test_a_jump_past_several_rungs_is_one_alert(database: str, clock: Clock) -> None:
    limit(database)
    channel(database)
    spend(1_950, tenant="acme")
    assert evaluate(clock.goes_on(MINUTE)) == 1
    assert (told(database), sent(database)) == ([(90, 1950)], ["fired"])


def test_what_is_only_reserved_is_not_told(database: str, clock: Clock) -> None:
    limit(database)
    hold(1_990, tenant="acme")
    assert evaluate(clock.goes_on(MINUTE)) == 0


def test_the_rungs_are_those_of_the_limit(database: str, clock: Clock) -> None:
    limit(database, notify_at=[50])
    limit(database, notify_at=[], unit="calls", amount=1)
    spend(1_000, tenant="acme")
    assert evaluate(clock.goes_on(MINUTE)) == 1
    assert told(database) == [(50, 1000)]


@pytest.mark.parametrize("window", ["day", "total"])
def test_a_limit_that_is_lowered_is_looked_at_again(
    database: str, clock: Clock, window: str
) -> None:
    rule = limit(database, window=window)
    spend(1_000, tenant="acme")
    spend(10, tenant="other")
    assert evaluate(clock.goes_on(MINUTE)) == 0
    clock.goes_on(HOUR)
    rule.amount = 1_100
    rule.save()
    assert evaluate(clock.goes_on(MINUTE)) == 1
    assert told(database) == [(90, 1000)]


@pytest.mark.parametrize("window", ["day", "total"])
def test_a_limit_that_is_raised_is_told_anew_above_every_earlier_amount(
    database: str, clock: Clock, window: str
) -> None:
    rule = limit(database, 1_000, window=window)
    spend(1_000, tenant="acme")
    evaluate(clock.goes_on(MINUTE))
    rule.amount = 2_000
    rule.save()
    evaluate(clock.goes_on(MINUTE))
    spend(400, tenant="acme")
    evaluate(clock.goes_on(MINUTE))
    assert told(database) == [(100, 1000), (70, 1400)]
    rule.amount = 1_000  # refused again, which was told
    rule.save()
    assert evaluate(clock.goes_on(MINUTE)) == 0


def test_an_increase_counts(database: str, clock: Clock) -> None:
    rule = limit(database, 1_000)
    spend(950, tenant="acme")
    LimitIncrease.objects.using(database).create(
        limit=rule, tenant="acme", amount=9_000, until=clock.now + DAY
    )
    assert evaluate(clock.goes_on(MINUTE)) == 0


def test_what_was_allowed_for_a_while_is_looked_at_again_when_it_has_ended(
    database: str, clock: Clock
) -> None:
    """From then on calls are refused, and a refused call moves no budget."""
    general = limit(database)
    LimitIncrease.objects.using(database).create(
        limit=general, amount=2_000, until=clock.now + HOUR
    )
    limit(database, tenant="guest", amount=9_000, expires_at=clock.now + HOUR)
    spend(2_400, tenant="acme")
    spend(2_500, tenant="guest")
    assert [evaluate(clock.goes_on(9 * MINUTE)) for _ in range(6)] == [0] * 6
    assert evaluate(clock.goes_on(9 * MINUTE)) == 2
    assert sorted(told(database)) == [(100, 2400), (100, 2500)]
    assert evaluate(clock.goes_on(MINUTE)) == 0


def test_an_adjustment_counts(database: str, clock: Clock) -> None:
    limit(database)
    allowance.adjust(tenant="acme", amount=1_400, unit="tokens", reason="moved", by="ana")
    assert evaluate(clock.goes_on(MINUTE)) == 1
    assert told(database) == [(70, 1400)]


def test_a_limit_that_is_overridden_tells_nothing(database: str, clock: Clock) -> None:
    limit(database, 100)
    limit(database, 10_000, tenant="acme")
    spend(100, tenant="acme")
    assert evaluate(clock.goes_on(MINUTE)) == 0


def test_limits_on_each_shape_of_scope_tell(database: str, clock: Clock) -> None:
    """All of them new, after the calls: nothing but sums of these can tell."""
    spend(100, tenant="acme", user="u_1", session="s", feature="chat")
    evaluate(clock.goes_on(MINUTE))
    shapes: list[dict[str, str]] = [
        {"tenant": ""},
        {"tenant": "acme"},
        {"tenant": "*", "user": "*"},
        {"tenant": "", "session": "*"},
        {"tenant": "", "feature": "chat", "model": "m"},
        {"tenant": "", "feature": "*", "window": "rolling", "rolling_seconds": "3600"},
        {"tenant": "", "user": "*", "window": "month", "time_zone": "Asia/Kathmandu"},
    ]
    for shape in shapes:
        limit(database, 120, **shape)
    assert evaluate(clock.goes_on(MINUTE)) == len(shapes)
    assert {alert.value for alert in Alert.objects.using(database).all()} == {100}


def test_a_rolling_window_is_told_once_in_its_length(database: str, clock: Clock) -> None:
    limit(database, 100, window="rolling", rolling_seconds=3600, tenant="")
    spend(80)
    assert evaluate(clock.goes_on(MINUTE)) == 1
    assert evaluate(clock.goes_on(MINUTE)) == 0
    clock.goes_on(2 * HOUR)
    evaluate(clock.now)
    spend(80)
    assert evaluate(clock.goes_on(MINUTE)) == 1
    assert told(database) == [(70, 80), (70, 80)]


def test_windows_of_a_minute_are_told_once_an_hour_though_they_have_ended(
    database: str, clock: Clock
) -> None:
    limit(database, 100, window="minute")
    for _ in range(3):
        spend(80, tenant="acme")
        evaluate(clock.goes_on(MINUTE))
    assert told(database) == [(70, 80)]


def test_what_was_crossed_just_before_a_window_ended_is_told(database: str, clock: Clock) -> None:
    limit(database)
    clock.now = dt.datetime(2026, 3, 4, 23, 59, 30, tzinfo=dt.UTC)
    spend(2_000, tenant="acme")
    assert evaluate(clock.goes_on(MINUTE)) == 1


def test_a_window_long_gone_is_not(database: str, clock: Clock) -> None:
    limit(database)
    late = hold(2_000, tenant="acme")
    clock.goes_on(2 * DAY)
    late.settle(Usage(2_000))
    assert evaluate(clock.goes_on(MINUTE)) == 0


def test_a_limit_of_a_plan_tells_of_its_tenants(database: str, clock: Clock) -> None:
    Tenant.objects.using(database).create(key="acme", plan="pro")
    limit(database, 100, plan="pro")
    for tenant in ("acme", "other"):
        spend(100, tenant=tenant)
    assert evaluate(clock.goes_on(MINUTE)) == 1
    assert Alert.objects.using(database).get().tenant == "acme"


def test_each_rule_about_budgets_tells_for_itself(database: str, clock: Clock) -> None:
    limit(database)
    evaluate(clock.now)
    pager = channel(database, name="pager")
    channel(database, name="everything")
    second = AlertRule.objects.using(database).create(kind="budget", name="for the pager")
    second.channels.add(pager)
    spend(1_400, tenant="acme")
    assert evaluate(clock.goes_on(MINUTE)) == 2
    told_where = Delivery.objects.using(database).values_list("alert__rule__name", "channel__name")
    assert sorted(told_where) == [
        ("A budget reaches 70, 90 or 100 percent", "everything"),
        ("A budget reaches 70, 90 or 100 percent", "pager"),
        ("for the pager", "pager"),
    ]


def test_what_is_no_key_of_ours_is_passed_over(database: str, clock: Clock) -> None:
    """A store's events may say anything."""
    limit(database)
    spend(1_400, tenant="acme")
    spend(1, tenant="other")
    conf.store().drain()
    strange = [["x"], "y", ["8|colour=red|cost|day/1/UTC|-", "cost", 1], 7, [None], [7],
               ["8|tenant=a|cost|day/1/No/Where|20260304T000000Z", "cost", 1]]  # fmt: skip
    Reservation.objects.using(database).filter(tenant="other").update(holds=strange)
    assert evaluate(clock.goes_on(MINUTE)) == 1
    assert not AlertRule.objects.using(database).exclude(error="").exists()
