"""What tests of alerts share: a clock that they move, limits, channels, and what was told."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from token_allowance.models import Alert, Channel, Delivery, Limit

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
    clock = Clock(START)
    monkeypatch.setattr("django.utils.timezone.now", clock)
    return clock


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
