"""One alert, however many processes see the same thing at the same moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from tests import callers
from tests.alerting import channel, limit, only_budgets, told
from tests.stores import spend
from token_allowance import conf
from token_allowance.alerts.evaluation import evaluate
from token_allowance.models import Alert, Delivery, HourlySpend

CROSSING = 50


@pytest.fixture(scope="module")
def processes() -> Iterator[callers.Callers]:
    with callers.running("tests.crossings") as made:
        yield made


def at_once(processes: callers.Callers, go: Path, kind: str, count: int, **task: Any) -> list[str]:
    """Let so many processes do the same at the same moment; what each of them said."""
    for _ in range(count):
        processes.start(kind=kind, go=str(go), **task)
    go.touch()
    assert processes.process.stdout
    return [processes.process.stdout.readline().strip() for _ in range(count)]


def test_fifty_that_cross_one_rung_at_once_are_one_alert(
    database: str, processes: callers.Callers, tmp_path: Path
) -> None:
    """Case C84: the settlement of each of 50 processes finds 70 percent used."""
    only_budgets(database)
    limit(database, window="total")
    for name in ("mail", "chat"):
        channel(database, name=name)
    spend(1_399, tenant="acme")
    evaluate(timezone.now())
    said = at_once(processes, tmp_path / "go", "cross", CROSSING, tokens=1)
    assert sorted(said) == ["fired 0"] * (CROSSING - 1) + ["fired 1"]
    alert = Alert.objects.using(database).get()
    assert (alert.rung, alert.tenant) == (70, "acme")
    assert 1_400 <= (alert.value or 0) < 1_400 + CROSSING
    deliveries = Delivery.objects.using(database).order_by("channel__name")
    assert list(deliveries.values_list("channel__name", "event", "alert")) == [
        ("chat", "fired", alert.pk),
        ("mail", "fired", alert.pk),
    ]


def test_of_many_that_race_up_the_ladder_none_tells_a_rung_below_one_that_was_told(
    database: str, processes: callers.Callers, tmp_path: Path
) -> None:
    only_budgets(database)
    limit(database, window="total")
    channel(database)
    at_once(processes, tmp_path / "go", "cross", 20, tokens=100)
    evaluate(timezone.now())
    rungs = [rung for rung, _ in told(database)]
    assert rungs == sorted(set(rungs))
    assert rungs[-1] == 100
    assert Delivery.objects.using(database).count() == len(rungs)


def test_roll_ups_made_by_many_at_once_count_each_call_once(
    database: str, processes: callers.Callers, tmp_path: Path
) -> None:
    for user in "abcdef":
        spend(10, tenant="acme", user=user)
    conf.store().drain()
    assert set(at_once(processes, tmp_path / "go", "fold", 8)) == {"folded"}
    lines = HourlySpend.objects.using(database)
    assert sorted(lines.values_list("user", "calls")) == [(user, 1) for user in "abcdef"]
