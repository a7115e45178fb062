"""What tests of alerts share: a clock that they move, limits, channels, and what was told."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from token_allowance.alerts import defaults, kinds
from token_allowance.models import Alert, AlertRule, Channel, Delivery, Limit

MINUTE, HOUR, DAY = dt.timedelta(minutes=1), dt.timedelta(hours=1), dt.timedelta(days=1)
START = dt.datetime(2026, 3, 4, 9, 0, tzinfo=dt.UTC)


class Clock:
    """The application's clock, moved by the test."""

    def __init__(self, now: dt.datetime) -> None:
        self.now = now

    def __call__(self) -> dt.datetime:
        return self.now

    def goes_on(self, by: dt.timedelta) -> dt.datetime:
        self.now += by
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """With rules about budgets alone: the calls of tests are in many ways unusual."""
    finds = {AlertRule.Kinds.BUDGET: kinds.FINDS[AlertRule.Kinds.BUDGET]}
    monkeypatch.setattr(kinds, "FINDS", finds)
    clock = Clock(START)
    monkeypatch.setattr("django.utils.timezone.now", clock)
    return clock


def only_budgets(alias: str) -> None:
    """Let the rules about anything else rest, in every process."""
    defaults.ensure(alias)
    others = AlertRule.objects.using(alias).exclude(kind=AlertRule.Kinds.BUDGET)
    others.update(is_active=False)


def limit(alias: str, amount: int = 2_000, **given: Any) -> Limit:
    chosen = {"tenant": "*", "unit": "tokens", "window": "day", "amount": amount} | given
    return Limit.objects.using(alias).create(**chosen)


def channel(alias: str, **given: Any) -> Channel:
    return Channel.objects.using(alias).create(**({"name": "ops", "kind": "signal"} | given))


def told(alias: str) -> list[tuple[int, int]]:
    """(rung, used) of each alert, in the order they were told."""
    alerts = Alert.objects.using(alias).order_by("id")
    return [(alert.rung, alert.value or 0) for alert in alerts]


def sent(alias: str) -> list[str]:
    return list(Delivery.objects.using(alias).order_by("id").values_list("event", flat=True))
