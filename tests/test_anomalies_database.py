"""The rules on the tables, through the evaluation of each minute: each incident is one alert."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connections
from django.test.utils import CaptureQueriesContext

from tests.stores import spend
from tests.traffic import BUSY, NIGHT, ZONE, Call, ledger_rows, minute_of, rollups, traffic
from token_allowance import allowance, conf, drill_record
from token_allowance.alerts import preview, quarters, telling
from token_allowance.alerts.evaluation import evaluate
from token_allowance.alerts.history import History
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import (
    Alert,
    AlertRule,
    DeadLetter,
    Drill,
    HourlySpend,
    Limit,
    PendingSettlement,
    Price,
    Refusal,
    Reservation,
)

KINDS = AlertRule.Kinds
ONE = Decimal(1)
MINUTE, HOUR = dt.timedelta(minutes=1), dt.timedelta(hours=1)
MODELS = ("gpt-5-mini", "gpt-5-nano", "claude-sonnet", "claude-opus")
FREE = {"cost_micros": None, "cost_exact": None}
MOST_QUERIES = 100  # of an evaluation, and the rows of a minute
AROUND = range(-1, 5)  # quarters


class World:
    """One database at one moment of a traffic, and the clock."""

    def __init__(self, alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.alias, self.now, self.made = alias, BUSY, traffic(1)
        monkeypatch.setattr("django.utils.timezone.now", lambda: self.now)

    def begins(self, at: dt.datetime) -> None:
        """So far everything was as usual: the roll-ups know four weeks, the ledger an hour."""
        self.now, minute = at, minute_of(at)
        for model in MODELS:
            Price.objects.using(self.alias).create(
                provider="openai", model=model, input_mtok=ONE, output_mtok=ONE, source="test"
            )
        calls = self.made.between(minute - 6 * 60, minute)
        for week in quarters.same_time(at, at + quarters.SECONDS * dt.timedelta(seconds=1),
                                       self.made.zone):  # fmt: skip
            first, last = (15 * (week.start + edge) for edge in (AROUND.start, AROUND.stop))
            calls = [*self.made.between(first, last), *calls]
        rows = rollups(call._replace(user="") for call in calls)
        HourlySpend.objects.using(self.alias).bulk_create(rows, batch_size=500)
        self.ledger(self.made.between(minute - 60, minute))

    def ledger(self, calls: Iterable[Call], **given: Any) -> None:
        Reservation.objects.using(self.alias).bulk_create(ledger_rows(calls, **given))

    def goes_on(self, more: Iterable[Call] = (), minutes: int = 1) -> None:
        """One minute, or several, with their calls, and these, and an evaluation."""
        minute = minute_of(self.now)
        self.ledger([*self.made.between(minute, minute + minutes), *more])
        self.now += minutes * MINUTE
        evaluate(self.now)

    def alerts(self, kind: str = "") -> list[Alert]:
        found = Alert.objects.using(self.alias).order_by("id")
        return list(found.filter(rule__kind=kind) if kind else found)

    def told(self) -> list[tuple[str, str]]:
        return [(alert.rule.kind, alert.target) for alert in self.alerts()]


@pytest.fixture
def world(database: str, monkeypatch: pytest.MonkeyPatch, settings: LazySettings) -> World:
    settings.TOKEN_ALLOWANCE = settings.TOKEN_ALLOWANCE | {"TIME_ZONE": ZONE}
    return World(database, monkeypatch)


def failures(alias: str) -> list[str]:
    return [r.error for r in AlertRule.objects.using(alias).exclude(error="")]


def test_a_quiet_quarter_is_quiet(world: World) -> None:
    world.begins(BUSY)
    for _ in range(4):
        world.goes_on()
    with CaptureQueriesContext(connections[world.alias]) as queries:
        world.goes_on()
    assert world.told() == []
    assert len(queries) < MOST_QUERIES, "for each of many tenants?"
    assert failures(world.alias) == []
    assert AlertRule.objects.using(world.alias).filter(evaluated_at=world.now).count() >= 12


def test_a_runaway_agent_is_one_alert_until_it_is_over(world: World) -> None:
    world.begins(BUSY)
    for _ in range(5):
        loop = world.made.incident(minute_of(world.now), "tenant-07", "agent", 30)
        world.goes_on(loop)
        if world.alerts():
            break
    assert world.told() == [(KINDS.SPEND_RATE, "tenant=tenant-07,feature=agent")]
    alert = world.alerts()[0]
    assert alert.title.startswith("agent / tenant-07 is spending $")
    assert (alert.tenant, alert.feature, alert.unit) == ("tenant-07", "agent", "cost")
    assert (alert.value or 0) > (alert.threshold or 0) > 0
    assert alert.snapshot["top_spenders"][0]["feature"] == "agent"
    for minutes in (1, 15, 6):
        world.goes_on(minutes=minutes)
    assert len(world.alerts()) == 1
    assert world.alerts()[0].resolved_at is not None


def test_a_surge_that_goes_on_does_not_become_the_usual_it_is_measured_by(world: World) -> None:
    """At night, where few calls are usual, the highest quarter of the last days is looked at."""
    world.begins(NIGHT)
    for minutes in (4, 20, 20, 6):
        minute = minute_of(world.now)
        loop = [
            call
            for one in range(minute, minute + minutes)
            for call in world.made.incident(one, "tenant-07", "agent", 60)
        ]
        merged = rollups(call._replace(user=f"at {minute}") for call in loop)
        HourlySpend.objects.using(world.alias).bulk_create(merged)
        world.goes_on(loop, minutes=minutes)
    [alert] = world.alerts(KINDS.SPEND_RATE)
    assert alert.target == "tenant=tenant-07,feature=agent"
    assert alert.resolved_at is None


def test_where_no_rollups_are_kept_the_ledger_tells_the_past(world: World) -> None:
    world.begins(BUSY)
    calls = HourlySpend.objects.using(world.alias)
    minute = minute_of(BUSY)
    calls.all().delete()
    for week in quarters.same_time(BUSY, BUSY + 15 * MINUTE, world.made.zone):
        world.ledger(world.made.between(15 * week.start, 15 * week.stop))
    for number in range(6):
        world.goes_on(world.made.incident(minute + number, "tenant-07", "agent", 30))
    kinds = [kind for kind, _ in world.told()]
    assert kinds.count(KINDS.SPEND_RATE) == 1
    world.goes_on()
    assert failures(world.alias) == []


@pytest.mark.parametrize("database", ["postgresql", "sqlite"], indirect=True)
def test_what_a_rule_would_have_told_can_be_seen_before_it_is_changed(world: World) -> None:
    minute = minute_of(BUSY)
    some = [
        call._replace(user="", tenant="tenant-01")
        for call in world.made.calls
        if call.feature in ("agent", "search")
    ]
    hour_ago = minute - minute % 15 - 60
    loop = world.made.incident(hour_ago, "tenant-01", "agent", 900)
    long = [c._replace(tokens=15 * c.tokens) for c in world.made.incident(
        hour_ago - 120, "tenant-01", "search", 400)]  # fmt: skip
    rows = rollups([*some, *loop, *long])
    HourlySpend.objects.using(world.alias).bulk_create(rows, batch_size=500)
    rule = AlertRule(kind=KINDS.SPEND_RATE, threshold=Decimal(4))
    rule._state.db = world.alias
    at = quarters.start((hour_ago + 15) // 15)
    fired = preview.would_have_fired(rule, BUSY, days=2)
    assert fired == [(at, "feature=agent")]
    rule.threshold = Decimal(400)
    assert preview.would_have_fired(rule, BUSY, days=2) == []
    rule.kind, rule.threshold = KINDS.TOKENS_PER_REQUEST, None
    assert preview.would_have_fired(rule, BUSY, days=2) == [(at - 2 * HOUR, "feature=search")]
    rule.kind = KINDS.STORE_DOWN
    assert preview.would_have_fired(rule, BUSY) is None


def test_the_past_is_that_of_charged_calls(world: World) -> None:
    """In the ledger, too, calls that are under way or were released have spent nothing."""
    minute = minute_of(BUSY)
    world.ledger(world.made.incident(minute, "tenant-01", "chat", 3))
    for state in ("reserved", "released"):
        world.ledger(world.made.incident(minute, "tenant-01", "chat", 5), state=state)
    quarter, history = minute // 15, History(world.alias)
    found = history.quarters([range(quarter, quarter + 1)], ("tenant", "feature"))
    recent = history.recent(BUSY, BUSY + MINUTE)
    [was], [now] = found["tenant-01", "chat"].values(), recent.values()
    assert was.calls == now.calls == 3
    assert (was.micros, was.tokens) == (now.micros, now.tokens)
    rows = Reservation.objects.using(world.alias).filter(state="settled")
    costs = rows.values_list("cost_micros", flat=True)
    assert now.micros == sum(cost or 0 for cost in costs)
    assert now.squared_micros == sum(float(cost or 0) ** 2 for cost in costs)


def test_what_is_over_begins_at_its_full_threshold_again(world: World) -> None:
    rule = AlertRule.objects.using(world.alias).create(kind=KINDS.SPEND_RATE, name="spikes")
    for target, over in (("feature=a", BUSY), ("feature=b", None)):
        Alert.objects.using(world.alias).create(
            rule=rule, target=target, severity="info", title=target, fired_at=BUSY, resolved_at=over
        )
    assert telling.begun(rule) == {"feature=b": BUSY}


def test_a_prompt_that_grew_is_one_alert(world: World) -> None:
    world.begins(BUSY)
    minute = minute_of(BUSY)
    grown = [
        call._replace(tokens=10 * call.tokens)
        for call in world.made.between(minute, minute + 15)
        if call.feature == "search"
    ]
    Reservation.objects.using(world.alias).filter(feature="search").delete()
    world.ledger(grown)
    world.now += 15 * MINUTE
    for _ in range(2):
        evaluate(world.now)
    found = world.alerts(KINDS.TOKENS_PER_REQUEST)
    assert [alert.target for alert in found] == ["feature=search"]
    assert "tokens a call" in found[0].title


def test_a_user_who_hammers_is_one_alert_refused_calls_included(world: World) -> None:
    world.begins(NIGHT)
    minute = minute_of(world.now)
    world.goes_on(world.made.incident(minute, "tenant-03", "search", 40, user="u_1"))
    assert world.told() == []
    for number in range(3):
        Refusal.objects.using(world.alias).create(
            starts_at=world.now, code="exhausted", tenant="tenant-03", user="u_1", calls=40,
            first_at=world.now, last_at=world.now,
        )  # fmt: skip
        world.goes_on(world.made.incident(minute + 1 + number, "tenant-03", "search", 40, "u_1"))
    assert world.told() == [(KINDS.REQUESTS_PER_USER, "tenant=tenant-03,user=u_1")]
    assert world.alerts()[0].value == 80


def test_silence_is_one_alert_and_a_call_ends_it(world: World) -> None:
    world.begins(BUSY)
    world.now += 14 * MINUTE
    evaluate(world.now)
    assert world.told() == []
    for _ in range(3):
        world.now += MINUTE
        evaluate(world.now)
    assert world.told() == [(KINDS.SILENT, "global")]
    for minutes in (1, 6):
        world.goes_on(minutes=minutes)
    assert world.alerts()[0].resolved_at is not None


def test_a_quiet_night_and_a_stop_are_no_silence(world: World) -> None:
    world.begins(NIGHT)
    world.now += 20 * MINUTE
    evaluate(world.now)
    assert world.told() == []


def test_where_every_call_is_refused_the_ledger_is_not_called_silent(world: World) -> None:
    world.begins(BUSY)
    world.now += 20 * MINUTE
    Refusal.objects.using(world.alias).create(
        starts_at=world.now - 2 * MINUTE, code="switch_engaged", calls=9,
        first_at=world.now, last_at=world.now,
    )  # fmt: skip
    evaluate(world.now)
    assert world.told() == []


def test_a_model_without_a_price_is_told_until_it_has_one(world: World) -> None:
    world.begins(NIGHT)
    new = [
        c._replace(model="gpt-9", micros=0) for c in world.made.between(0, minute_of(NIGHT))[-3:]
    ]
    new = [call._replace(minute=minute_of(NIGHT)) for call in new]
    world.ledger(new, flags=["unpriced"], **FREE)
    for _ in range(2):
        world.goes_on()
    assert world.told() == [(KINDS.UNPRICED, "provider=openai,model=gpt-9")]
    alert = world.alerts()[0]
    assert "gpt-9" in alert.title
    assert "sync-prices" in alert.snapshot["sentence"]
    Price.objects.using(world.alias).create(
        provider="openai", model="gpt-9", input_mtok=ONE, output_mtok=ONE, source="test"
    )
    for minutes in (1, 6):
        world.goes_on(minutes=minutes)
    assert world.alerts()[0].resolved_at is not None


def test_a_model_charged_by_the_fallback_price_is_told(world: World) -> None:
    world.begins(NIGHT)
    calls = world.made.incident(minute_of(NIGHT), "tenant-01", "search", 1)
    world.ledger([c._replace(model="gpt-9") for c in calls], flags=["unpriced"])
    world.goes_on()
    assert "fallback price" in world.alerts(KINDS.UNPRICED)[0].title


def test_too_much_charged_by_estimate_is_one_alert(world: World) -> None:
    world.begins(BUSY)
    for _ in range(2):
        calls = world.made.incident(minute_of(world.now), "tenant-01", "chat", 15)
        world.ledger([c._replace(model="gpt-5-nano") for c in calls], flags=["estimated"])
        world.goes_on()
    found = world.alerts(KINDS.ESTIMATED)
    assert [alert.target for alert in found] == ["provider=openai,model=gpt-5-nano"]
    assert found[0].value is not None
    assert found[0].value >= 20


def test_reservations_that_end_without_a_word_are_one_alert(world: World) -> None:
    world.begins(NIGHT)
    for number in range(7):
        call = world.made.incident(minute_of(world.now), "tenant-01", "agent", 1)
        at = world.now - MINUTE
        world.ledger(call, state="expired", settled_at=None, **FREE,
                     created_at=at - 10 * MINUTE, expires_at=at)  # fmt: skip
        world.goes_on()
        assert len(world.told()) == (number >= 4)
    assert world.told() == [(KINDS.EXPIRED, "tenant=tenant-01,feature=agent")]


def test_a_store_that_cannot_be_asked_is_one_alert(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(*_: object) -> None:
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(type(conf.store()), "usage", usage)
        for _ in range(3):
            world.now += MINUTE
            evaluate(world.now)
    assert world.told() == [(KINDS.STORE_DOWN, "store")]
    assert "refused" in world.alerts()[0].title
    world.now += 6 * MINUTE
    evaluate(world.now)
    assert world.alerts()[0].resolved_at is not None


def test_a_ledger_that_does_not_hear_all_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(conf.store()), "behind_seconds", lambda self: 61.0)
    monkeypatch.setattr(type(conf.store()), "drain", lambda self: 0)
    DeadLetter.objects.using(world.alias).create(
        prefix="ta", event_id="1-1", payload=b"", error="bad", created_at=world.now
    )
    call = world.made.incident(minute_of(world.now) - 6, "tenant-01", "chat", 1)
    world.ledger(call, flags=["unmetered_admission"])
    PendingSettlement.objects.using(world.alias).create(
        id=Reservation.objects.using(world.alias).get().pk, document={},
        created_at=world.now - 6 * MINUTE,
    )  # fmt: skip
    for _ in range(2):
        evaluate(world.now)
    found = {alert.target for alert in world.alerts(KINDS.STORE_DOWN)}
    assert found == {"ledger", "dead letters", "settlements", "unmetered"}
    assert len(world.alerts()) == 4


def test_each_pull_and_release_of_a_switch_is_told_once(world: World) -> None:
    allowance.engage("feature:agent", reason="runaway loop INC-4821", by="ana", minutes=30)
    evaluate(world.now)
    world.now += MINUTE
    allowance.disengage("feature:agent", by="ben", reason="fixed")
    for _ in range(2):
        evaluate(world.now)
    stopped, released = world.alerts()
    assert stopped.title == "agent by ana: runaway loop INC-4821. Ends 11:30."
    assert released.title == "agent by ben: fixed."
    assert [a.snapshot["state_after"] for a in (stopped, released)] == ["stopped", "ok"]
    assert (stopped.target, stopped.feature) == ("feature=agent", "agent")


def test_a_switch_pulled_and_released_between_two_looks_is_told_in_that_order(
    world: World,
) -> None:
    allowance.engage("feature:agent", reason="runaway", by="ana")
    allowance.disengage("feature:agent", by="ben", reason="fixed")
    evaluate(world.now)
    titles = [alert.title for alert in sorted(world.alerts(), key=lambda alert: alert.pk)]
    assert titles == ["agent by ana: runaway.", "agent by ben: fixed."]


def test_a_budget_that_will_not_last_is_told_once_and_once_more_when_it_is_urgent(
    world: World,
) -> None:
    rule = {"unit": "tokens", "window": "day", "amount": 100_000, "notify_at": []}
    Limit.objects.using(world.alias).create(tenant="*", **rule)
    Limit.objects.using(world.alias).create(tenant="*", user="*", **rule)
    for _ in range(4):
        world.now += 15 * MINUTE
        spend(15_000, tenant="acme", user="u_1")
    world.now += 10 * MINUTE
    for _ in range(2):
        evaluate(world.now)
    [told] = world.alerts(KINDS.FORECAST)
    assert (told.severity, told.tenant, told.user, told.rung) == ("info", "acme", "", 1)
    assert "at this pace" in told.title
    for _ in range(5):
        world.now += MINUTE
        spend(6_000, tenant="acme", user="u_1")
        evaluate(world.now)
    urgent = world.alerts(KINDS.FORECAST)
    assert [(alert.severity, alert.rung) for alert in urgent] == [("info", 1), ("critical", 2)]
    assert failures(world.alias) == []


def test_a_drill_that_is_overdue_is_told(world: World) -> None:
    world.now = BUSY
    call = world.made.incident(minute_of(BUSY) - 40 * 24 * 60, "tenant-01", "chat", 1)
    world.ledger(call)
    evaluate(world.now)
    assert [a.title for a in world.alerts(KINDS.DRILL_OVERDUE)] == [
        "the kill switch was never drilled"
    ]
    Drill.objects.using(world.alias).create(
        processes=1, by="ana", slo_ms=1, passed=True, started_at=world.now
    )
    world.now += 6 * MINUTE
    evaluate(world.now)
    assert world.alerts(KINDS.DRILL_OVERDUE)[0].resolved_at is not None
    assert not drill_record.overdue(world.now)
