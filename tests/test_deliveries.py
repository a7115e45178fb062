"""The outbox of alerts on each database: sent once, however often it is tried (case C86)."""

from __future__ import annotations

import datetime as dt
import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from django.core import mail
from django.db import transaction

from tests.tellings import NOW, alert, channel, rule
from token_allowance import tasks
from token_allowance.channels import outbox, senders
from token_allowance.management.told import findings, summary
from token_allowance.models import Alert, AlertRule, Channel, Delivery

FIRED, RESOLVED, TEST = Delivery.Events.FIRED, Delivery.Events.RESOLVED, Delivery.Events.TEST


@pytest.fixture
def using(database: str) -> str:
    return database


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> list[Exception | None]:
    """What each attempt raises in turn; afterwards, and for None, it is sent."""
    script: list[Exception | None] = []
    send = senders.send

    def scripted(delivery: Delivery, now: dt.datetime) -> None:
        if script and (error := script.pop(0)):
            raise error
        send(delivery, now)

    monkeypatch.setattr(senders, "send", scripted)
    return script


def after(**length: float) -> dt.datetime:
    return NOW + dt.timedelta(**length)


def deliveries(using: str) -> list[Delivery]:
    return list(Delivery.objects.using(using).order_by("id"))


def told(using: str, **given: Any) -> Alert:
    """An alert that was written with its deliveries, as an evaluation does."""
    with transaction.atomic(using=using):
        fired = alert(using, **given)
        outbox.tell(fired, FIRED, NOW)
    return fired


def test_c86_a_task_that_runs_three_times_sends_one_mail(using: str) -> None:
    channel(using)
    told(using)
    assert [outbox.deliver(after(seconds=n)) for n in range(3)] == [1, 0, 0]
    assert len(mail.outbox) == 1
    (row,) = deliveries(using)
    assert (row.state, row.attempts, row.error, row.claimed_until) == ("sent", 1, "", None)
    assert row.sent_at is not None


def test_c86_a_broker_that_is_down_delays_and_loses_nothing(
    using: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"redis://:hunter2@127.0.0.1:{closed.getsockname()[1]}/0"
    app = Celery("down", broker=url, set_as_current=False)

    @app.task(name=f"tests.deliver_{using}_{id(app)}", shared=False)
    def deliver() -> None:
        """Never runs."""

    monkeypatch.setattr(tasks, "deliver", deliver)
    channel(using)
    told(using)
    assert "no broker, alerts wait: OperationalError" in caplog.text
    assert "hunter2" not in caplog.text
    assert mail.outbox == []
    assert outbox.deliver(after(minutes=10)) == 1
    assert outbox.deliver(after(minutes=10)) == 0
    assert len(mail.outbox) == 1


def test_c86_what_is_rolled_back_is_not_told(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hurried: list[int] = []
    monkeypatch.setattr(outbox, "hurry", lambda: hurried.append(1))
    channel(using)
    with transaction.atomic(using=using):
        assert outbox.tell(alert(using), FIRED, NOW) == 1
        transaction.set_rollback(True, using=using)
    assert outbox.deliver(after(minutes=10)) == 0
    assert (mail.outbox, hurried, deliveries(using)) == ([], [], [])
    told(using)
    assert hurried == [1]


@pytest.mark.parametrize("broker_url", [None, "memory://"])
def test_without_a_broker_nobody_is_hurried(
    broker_url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has set one up, or tasks would run here and now, inside the caller."""
    conf = SimpleNamespace(broker_url=broker_url, task_always_eager=broker_url is not None)
    monkeypatch.setattr(tasks, "deliver", SimpleNamespace(app=SimpleNamespace(conf=conf)))
    outbox.hurry()
    monkeypatch.delitem(sys.modules, outbox.TASKS)
    outbox.hurry()


def test_nothing_is_sent_inside_a_transaction(using: str) -> None:
    channel(using)
    told(using)
    with pytest.raises(RuntimeError, match="durable"), transaction.atomic(using=using):
        outbox.deliver(NOW)
    assert mail.outbox == []


def test_telling_twice_writes_one_delivery_to_each_channel(using: str) -> None:
    channel(using)
    channel(using, "signal")
    fired = told(using)
    with transaction.atomic(using=using):
        outbox.tell(fired, FIRED, NOW)
    assert [row.channel.name for row in deliveries(using)] == ["email", "signal"]
    assert len({row.payload["id"] for row in deliveries(using)}) == 1


def test_channels_take_what_is_severe_enough_or_what_the_rule_says(using: str) -> None:
    for least in ("info", "warning", "critical"):
        channel(using, "signal", name=least, least_severity=least)
    channel(using, "signal", name="off", is_active=False)
    told(using, severity="warning")
    names = [row.channel.name for row in deliveries(using)]
    assert sorted(names) == ["info", "warning"]
    own = rule(using, name="own")
    own.channels.set(Channel.objects.using(using).filter(name__in=["critical", "off"]))
    fired = told(using, severity="info", rule=own)
    rows = Delivery.objects.using(using).filter(alert=fired)
    assert [row.channel.name for row in rows] == ["critical"]


def test_only_who_was_told_hears_that_it_is_over(using: str) -> None:
    first = channel(using)
    fired = told(using)
    channel(using, "signal")
    with transaction.atomic(using=using):
        assert outbox.tell(fired, RESOLVED, after(hours=1)) == 1
        assert outbox.tell(alert(using, rung=70), RESOLVED, NOW) == 0
    assert outbox.deliver(after(hours=2)) == 2
    assert [row.channel_id for row in deliveries(using)] == [first.pk, first.pk]
    assert [sent.subject.partition("]")[0] for sent in mail.outbox] == ["[BLOCKED", "[RESOLVED"]
    assert len({row.payload["id"] for row in deliveries(using)}) == 2


def test_what_is_muted_is_not_told(using: str) -> None:
    channel(using)
    told(using, muted_until=after(minutes=1))
    assert deliveries(using) == []
    told(using, muted_until=NOW, rung=90)
    assert len(deliveries(using)) == 1


def test_a_failure_is_tried_again_ever_more_rarely(using: str, fails: list[Any]) -> None:
    channel(using)
    told(using)
    fails.extend([senders.Failed("HTTP 503")] * 3)
    for moment, attempts in ((0, 1), (29, 1), (31, 2), (89, 2), (92, 3), (210, 3)):
        assert outbox.deliver(after(seconds=moment)) == 0
        (row,) = deliveries(using)
        assert (row.state, row.attempts, row.error) == ("pending", attempts, "HTTP 503")
    assert outbox.deliver(after(seconds=213)) == 1
    (row,) = deliveries(using)
    assert (row.state, row.attempts, row.error) == ("sent", 4, "")
    assert len(mail.outbox) == 1


def given_up(using: str, fails: list[Any]) -> Delivery:
    """Fail until it is given up."""
    fails.extend([senders.Failed("HTTP 503")] * outbox.ATTEMPTS)
    for hour in range(outbox.ATTEMPTS):
        assert outbox.deliver(after(hours=hour)) == 0
    return deliveries(using)[0]


def test_what_is_given_up_is_an_alert_until_a_message_arrives(using: str, fails: list[Any]) -> None:
    channel(using, name="ops")
    told(using)
    row = given_up(using, fails)
    assert (row.state, row.attempts, row.error) == ("failed", outbox.ATTEMPTS, "HTTP 503")
    assert outbox.deliver(after(days=1)) == 0
    found = Alert.objects.using(using).filter(rule__kind=AlertRule.Kinds.CHANNEL)
    (raised,) = found
    assert raised.title == "Alerts do not reach channel ops: HTTP 503"
    assert raised.resolved_at is None
    assert len(deliveries(using)) == 1  # it is shown, not sent
    told(using, rung=90)
    fails.append(senders.Failed("refused", final=True))
    assert outbox.deliver(after(days=1)) == 0
    assert deliveries(using)[1].state == "failed"  # at once
    assert found.count() == 1
    told(using, rung=70)
    assert outbox.deliver(after(days=2)) == 1
    assert found.get().resolved_at is not None


def test_a_rule_that_is_switched_off_raises_nothing(using: str, fails: list[Any]) -> None:
    rule(using, kind=AlertRule.Kinds.CHANNEL, name="mine", is_active=False)
    channel(using)
    told(using)
    assert given_up(using, fails).state == "failed"
    assert Alert.objects.using(using).count() == 1


def test_a_channel_that_fails_holds_up_no_other(using: str, fails: list[Any]) -> None:
    channel(using, name="bad")
    channel(using, name="good", address="good@example.com")
    told(using)
    told(using, rung=90)
    fails.append(senders.Failed("timed out"))
    assert outbox.deliver(NOW) == 2
    assert [sent.to for sent in mail.outbox] == [["good@example.com"]] * 2
    assert [(r.channel.name, r.attempts) for r in deliveries(using) if r.state == "pending"] == [
        ("bad", 1), ("bad", 0),
    ]  # fmt: skip


def test_what_is_claimed_is_left_alone_until_the_claim_has_run_out(using: str) -> None:
    channel(using)
    told(using)
    claimed = outbox.claim(NOW, using)
    assert claimed is not None
    assert outbox.claim(NOW, using) is None
    assert outbox.deliver(after(seconds=outbox.CLAIM_SECONDS - 1)) == 0
    assert outbox.deliver(after(seconds=outbox.CLAIM_SECONDS)) == 1
    # Its first sender was only slow: it has sent too, and what it notes changes nothing.
    assert outbox.send(claimed, outbox.clock_from(NOW), using)
    assert len(mail.outbox) == 2
    assert [row.state for row in deliveries(using)] == ["sent"]


def test_a_failure_that_comes_late_undoes_nothing(using: str, fails: list[Any]) -> None:
    channel(using)
    told(using)
    slow = outbox.claim(NOW, using)
    assert slow is not None
    assert outbox.deliver(after(minutes=5)) == 1
    fails.append(senders.Failed("timed out", final=True))
    assert not outbox.send(slow, outbox.clock_from(after(minutes=6)), using)
    assert [row.state for row in deliveries(using)] == ["sent"]


def test_a_failure_that_comes_late_gives_nobody_elses_claim_away(
    using: str, fails: list[Any]
) -> None:
    channel(using)
    told(using)
    slow = outbox.claim(NOW, using)
    later = after(seconds=outbox.CLAIM_SECONDS)
    other = outbox.claim(later, using)
    assert slow is not None
    assert other is not None
    fails.append(senders.Failed("timed out", final=True))
    assert not outbox.send(slow, outbox.clock_from(later), using)
    assert outbox.deliver(later) == 0
    assert outbox.send(other, outbox.clock_from(later), using)
    assert [(row.state, row.attempts) for row in deliveries(using)] == [("sent", 2)]


def test_what_ends_each_of_its_senders_is_given_up(using: str) -> None:
    channel(using)
    told(using)
    for minutes in range(0, 3 * outbox.ATTEMPTS, 3):
        assert outbox.claim(after(minutes=minutes), using) is not None
    assert outbox.deliver(after(days=1)) == 0
    (row,) = deliveries(using)
    assert row.state == "failed"
    assert "ended" in row.error
    assert mail.outbox == []


def test_a_message_is_sent_again_as_it_was(using: str, fails: list[Any]) -> None:
    channel(using)
    fired = told(using)
    row = given_up(using, fails)
    Alert.objects.using(using).filter(pk=fired.pk).update(title="changed since")
    assert outbox.again(Delivery.objects.using(using).all(), after(days=1)) == 1
    assert outbox.again(Delivery.objects.using(using).all(), after(days=1)) == 0
    assert outbox.deliver(after(days=1)) == 1
    assert deliveries(using)[0].payload == row.payload
    assert "changed" not in mail.outbox[0].subject


def test_a_channel_that_is_switched_off_waits_and_can_be_tried(using: str) -> None:
    ops = channel(using)
    told(using)
    Channel.objects.using(using).update(is_active=False)
    outbox.trial(ops, "ana", NOW)
    assert outbox.deliver(NOW) == 1
    assert [sent.subject for sent in mail.outbox] == ["[TEST] a message to channel email"]
    Channel.objects.using(using).update(is_active=True)
    assert outbox.deliver(NOW) == 1


def test_a_round_ends_and_the_rest_waits(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "ROUND_SECONDS", 0)
    channel(using)
    told(using)
    assert outbox.deliver(NOW) == 0
    monkeypatch.undo()
    assert outbox.deliver(NOW) == 1


def test_doctor_says_whether_alerts_reach_anybody(using: str, fails: list[Any]) -> None:
    assert [level for level, _ in findings()] == ["warning"]
    channel(using, name="ops")
    assert list(findings()) == [("ok", "Alerts are sent to 1 channel.")]
    told(using)
    (level, text), _ = findings()  # it has been due since last year
    assert (level, text.partition(":")[0]) == ("problem", "Messages that nobody sends")
    given_up(using, fails)
    (level, text), _ = findings()
    assert level == "problem"
    assert "given up: 1, the last one to channel ops: HTTP 503." in text
    assert summary() == "2 open; messages waiting: 0, given up: 1"
