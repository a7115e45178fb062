"""What an alert keeps, whom it tells, when it is over, and what people do about it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.conf import LazySettings

from tests.alerting import DAY, HOUR, MINUTE, START, Clock, channel, limit, sent
from tests.stores import spend
from token_allowance.alerts import firing, handling, kinds
from token_allowance.alerts.evaluation import evaluate
from token_allowance.alerts.finding import Finding
from token_allowance.channels import outbox
from token_allowance.management import looked
from token_allowance.models import Alert, AlertRule, Delivery
from token_allowance.stores.memory import MemoryStore


def test_the_alert_says_whose_budget_and_keeps_who_was_spending(
    database: str, clock: Clock
) -> None:
    limit(database, unit="tokens")
    spend(300, tenant="acme", user="ana", feature="agent")
    spend(1_100, tenant="acme", user="bo", feature="agent", model="n")
    spend(500, tenant="other", user="cy")
    evaluate(clock.goes_on(MINUTE))
    alert = Alert.objects.using(database).get()
    pace = "at this pace spent 4 Mar 12:52 UTC"
    assert alert.title == f"[70 %] acme: 1,400 tokens of 2,000 tokens used; {pace}"
    assert (alert.tenant, alert.user, alert.unit) == ("acme", "", "tokens")
    assert (alert.severity, alert.value, alert.threshold) == ("info", 1400, 1400)
    seen = alert.snapshot
    assert [(s["user"], s["model"], s["tokens"], s["percent"]) for s in seen["top_spenders"]] == [
        ("bo", "n", 1100, 78),
        ("ana", "m", 300, 21),
    ]
    assert (seen["used"], seen["amount"], seen["window"]) == (1400, 2000, "daily")
    assert (seen["state_before"], seen["state_after"], seen["next"]) == ("ok", "warning", 90)
    assert seen["resets_at"] == "2026-03-05T00:00:00+00:00"
    spend(600, tenant="acme")
    evaluate(clock.goes_on(MINUTE))
    blocked = Alert.objects.using(database).get(rung=100)
    assert blocked.title == "[BLOCKED] acme reached its daily limit: 2,000 tokens of 2,000 tokens"
    assert (blocked.severity, blocked.snapshot["state_after"]) == ("critical", "blocked")
    alert.refresh_from_db()
    assert alert.snapshot == seen


def test_messages_go_to_channels_that_take_the_severity(database: str, clock: Clock) -> None:
    limit(database)
    everything = channel(database)
    channel(database, name="pager", least_severity="critical")
    channel(database, name="off", is_active=False)
    spend(1_400, tenant="acme")
    evaluate(clock.goes_on(MINUTE))
    delivery = Delivery.objects.using(database).get()
    assert (delivery.channel, delivery.state) == (everything, "pending")
    assert delivery.payload["title"].startswith("[70 %] acme: 1,400 tokens")
    spend(600, tenant="acme")
    evaluate(clock.goes_on(MINUTE))
    assert Delivery.objects.using(database).count() == 3


def test_the_end_of_a_window_is_told_to_those_who_heard_of_refusals(
    database: str, clock: Clock
) -> None:
    limit(database)
    channel(database)
    spend(1_400, tenant="warned")
    spend(2_000, tenant="refused")
    evaluate(clock.goes_on(MINUTE))
    evaluate(clock.goes_on(DAY))
    assert not Alert.objects.using(database).filter(resolved_at=None).exists()
    recovered = Delivery.objects.using(database).get(event="resolved")
    assert recovered.alert is not None
    assert recovered.alert.tenant == "refused"
    evaluate(clock.goes_on(MINUTE))
    assert sent(database) == ["fired", "fired", "resolved"]


def test_a_raised_limit_is_a_recovery(database: str, clock: Clock) -> None:
    rule = limit(database)
    channel(database)
    spend(1_900, tenant="acme")
    evaluate(clock.goes_on(MINUTE))
    spend(100, tenant="acme")
    evaluate(clock.goes_on(MINUTE))
    evaluate(clock.goes_on(MINUTE))
    assert sent(database) == ["fired", "fired"]
    rule.amount = 100_000
    rule.save()
    evaluate(clock.goes_on(MINUTE))
    assert sent(database) == ["fired", "fired", "resolved"]


def test_without_channels_nobody_is_told_of_a_recovery(database: str, clock: Clock) -> None:
    limit(database)
    spend(2_000, tenant="acme")
    evaluate(clock.goes_on(MINUTE))
    channel(database)
    evaluate(clock.goes_on(DAY))
    assert sent(database) == []


def test_what_is_muted_is_written_down_and_not_sent(database: str, clock: Clock) -> None:
    limit(database)
    channel(database)
    spend(1_400, tenant="acme")
    evaluate(clock.goes_on(MINUTE))
    alert = Alert.objects.using(database).get()
    with pytest.raises(ValueError, match="24 hours"):
        handling.mute(alert, clock.now + 25 * HOUR, "ana", "known")
    with pytest.raises(ValueError, match="reason"):
        handling.mute(alert, clock.now + HOUR, "ana", " ")
    handling.mute(alert, clock.now + HOUR, "ana", "load test")
    spend(500, tenant="acme")
    evaluate(clock.goes_on(MINUTE))
    muted = Alert.objects.using(database).get(rung=90)
    assert (muted.muted_by, muted.mute_reason, sent(database)) == ("ana", "load test", ["fired"])
    handling.unmute(alert)
    spend(100, tenant="acme")
    evaluate(clock.goes_on(MINUTE))
    assert sent(database) == ["fired", "fired"]


def test_only_the_first_acknowledges(database: str, clock: Clock) -> None:
    limit(database)
    spend(1_400, tenant="acme")
    evaluate(clock.goes_on(MINUTE))
    alert = Alert.objects.using(database).get()
    assert handling.acknowledge(alert, "ana")
    assert not handling.acknowledge(alert, "bo")
    assert (alert.acknowledged_by, alert.acknowledged_at) == ("ana", clock.now)


def test_default_rules_are_written_once_and_stay_as_they_are_changed(
    database: str, clock: Clock
) -> None:
    evaluate(clock.now)
    rules = AlertRule.objects.using(database)
    assert set(rules.values_list("kind", flat=True)) >= set(kinds.FINDS)
    rules.filter(kind="budget").update(is_active=False, name="mine")
    limit(database)
    spend(2_000, tenant="acme")
    assert evaluate(clock.goes_on(MINUTE)) == 0
    assert rules.get(kind="budget").name == "mine"


def test_a_rule_that_fails_stops_no_other_and_says_so(
    database: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(rule: AlertRule, now: dt.datetime) -> list[Finding]:
        raise LookupError("no such thing")

    monkeypatch.setitem(kinds.FINDS, "switch", broken)
    AlertRule.objects.using(database).create(kind="switch", name="a broken rule")
    limit(database)
    spend(2_000, tenant="acme")
    assert evaluate(clock.goes_on(MINUTE)) == 1
    rule = AlertRule.objects.using(database).get(kind="switch")
    assert (rule.error, rule.evaluated_at) == ("LookupError: no such thing", clock.now)
    assert "cannot be evaluated" in caplog.text


def test_doctor_names_a_rule_that_fails_and_says_when_nobody_looks(
    database: str, clock: Clock
) -> None:
    evaluate(clock.goes_on(MINUTE))
    assert list(looked.findings()) == []
    AlertRule.objects.using(database).filter(kind="budget").update(error="KeyError: x")
    clock.goes_on(HOUR)
    assert [text for _, text in looked.findings()] == [
        'The alert rule "A budget reaches 70, 90 or 100 percent" cannot be evaluated: KeyError: x',
        "Nobody has looked for alerts since 2026-03-04 09:01 UTC. Run manage.py allowance jobs "
        "--loop, or Celery's beat with token_allowance.tasks.BEAT_SCHEDULE.",
    ]


def test_killed_between_two_alerts_it_tells_the_other_one_later(
    database: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(database)
    channel(database)
    for tenant in ("acme", "other"):
        spend(1_400, tenant=tenant)
    fire, tried = firing.fire, []

    def killed(*given: Any) -> bool:
        tried.append(given)
        if len(tried) == 2:
            raise KeyboardInterrupt
        return fire(*given)

    with monkeypatch.context() as patch:
        patch.setattr(firing, "fire", killed)
        with pytest.raises(KeyboardInterrupt):
            evaluate(clock.goes_on(MINUTE))
    assert Alert.objects.using(database).count() == 1
    assert evaluate(clock.goes_on(20 * MINUTE)) == 1
    assert sorted(a.tenant for a in Alert.objects.using(database).all()) == ["acme", "other"]
    assert sent(database) == ["fired", "fired"]


def test_an_alert_and_its_messages_are_both_there_or_neither(
    database: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case C86: what is rolled back was never told, and is told the next time."""
    limit(database)
    channel(database)
    spend(1_400, tenant="acme")

    def fails(*given: Any) -> int:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(outbox, "payload", fails)
        assert evaluate(clock.goes_on(MINUTE)) == 0
    assert not Alert.objects.using(database).exists()
    assert evaluate(clock.goes_on(MINUTE)) == 1
    assert sent(database) == ["fired"]


def test_what_is_open_until_it_is_over_is_told_once_and_flickers_in_silence(
    database: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Finding(target="feature=agent", title="agent is odd", feature="agent")]
    monkeypatch.setattr(kinds, "FINDS", {"spend_rate": lambda rule, now: found})
    channel(database)
    assert evaluate(clock.goes_on(MINUTE)) == 1
    assert evaluate(clock.goes_on(MINUTE)) == 0
    there, found = found, []
    assert evaluate(clock.goes_on(MINUTE)) == 0
    found = there
    assert evaluate(clock.goes_on(MINUTE)) == 0
    found = []
    for _ in range(5):
        assert sent(database) == ["fired"]
        evaluate(clock.goes_on(MINUTE))
    assert sent(database) == ["fired", "resolved"]
    found = there
    assert evaluate(clock.goes_on(MINUTE)) == 1


def test_a_store_in_memory_has_nothing_to_look_at(settings: LazySettings) -> None:
    backend = f"{MemoryStore.__module__}.{MemoryStore.__qualname__}"
    settings.TOKEN_ALLOWANCE = {"STORE": {"BACKEND": backend}}
    assert evaluate(START) == 0
