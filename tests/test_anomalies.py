"""The anomaly rules on weeks of traffic with daily and weekly shape: what they find, and what not.

The weeks are made and judged in memory; that the same comes out of the tables, and is told once, is
shown in test_anomalies_database.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator
from decimal import Decimal

import pytest

from tests.traffic import (
    BURSTY,
    BUSY,
    MINUTES_OF_WEEK,
    NIGHT,
    SATURDAY,
    Call,
    Traffic,
    cells,
    minute_of,
    traffic,
)
from token_allowance.alerts import quarters, silent
from token_allowance.alerts.lengths import Length, judge
from token_allowance.alerts.series import Past, Series
from token_allowance.alerts.sums import Cell, Sums, Target
from token_allowance.alerts.surges import Detector, Surge

FACTOR = Decimal(4)
Z = 4
SEEDS = [1, 2]


def before(made: Traffic, minute: int, began: int | None = None) -> Past:
    """The past at one minute, of traffic that began at another."""
    series = Series(made.series, (made.since if began is None else began) // 15, made.zone)
    until = quarters.EPOCH + dt.timedelta(minutes=minute)
    return series.before(until - dt.timedelta(minutes=15), until)


def surges(past: Past, recent: dict[Cell, Sums], begun: Collection[Target] = ()) -> list[Surge]:
    return Detector(FACTOR, Decimal(1), past).find(recent, begun)


def lengths(past: Past, recent: dict[Cell, Sums]) -> Iterator[Length]:
    for feature in sorted({feature for _, feature in recent}):
        found = judge(
            feature, Target(feature=feature).of(recent), past.lately(Target(feature=feature))
        )
        if found is not None and found.z >= Z:
            yield found


def alarms(made: Traffic, first: int, last: int, step: int, began: int) -> list[object]:
    """All that the rules find, looking so often, at what began then."""
    found: list[object] = []
    for minute in range(first, last + 1, step):
        past = before(made, minute, began)
        recent = cells(made.between(max(began, minute - 15), minute))
        found += [*surges(past, recent), *lengths(past, recent)]
        lowest = silent.expected(past.weeks(Target()))
        if not recent and lowest >= silent.LEAST_CALLS:
            found.append(minute)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_quiet_week_is_quiet(seed):
    made = traffic(seed)
    first = made.until - MINUTES_OF_WEEK
    assert alarms(made, first, made.until, 15, made.since) == []


def test_a_quiet_day_is_quiet_at_each_minute():
    made = traffic(1)
    first = minute_of(dt.datetime(2026, 4, 1, tzinfo=dt.UTC))
    assert alarms(made, first, first + 24 * 60, 1, made.since) == []


@pytest.mark.parametrize("weekday", ["Thursday", "Saturday"])
def test_a_young_installation_is_quiet_in_its_first_weeks(weekday):
    """Its first weekend, its first Monday, and the weeks before the shape of a week is known."""
    made = traffic(2)
    began = made.since + (3 if weekday == "Thursday" else 5) * 24 * 60
    assert alarms(made, began + 15, began + 2 * MINUTES_OF_WEEK + 24 * 60, 15, began) == []


@pytest.mark.parametrize("at", [BUSY, NIGHT, SATURDAY], ids=["busy", "night", "saturday"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_runaway_agent_is_found_in_its_first_quarter_and_told_as_what_it_is(seed, at):
    """The loop of one customer makes as many calls by night and at weekends as by day."""
    made, started = traffic(seed), minute_of(at)
    tenant, loop = "tenant-07", list[Call]()
    for minute in range(started, started + 15):
        loop += made.incident(minute, tenant, "agent", 30)
        now = minute + 1
        recent = cells([*made.between(now - 15, now), *loop])
        found = surges(before(made, now), recent)
        if found:
            break
    assert [surge.target for surge in found] == [Target(tenant, "agent")]
    assert found[0].micros >= found[0].threshold_micros


def test_a_runaway_of_14_times_is_found_within_five_minutes():
    made, started = traffic(1), minute_of(BUSY)
    loop = [
        call
        for minute in range(started, started + 5)
        for call in made.incident(minute, "tenant-07", "agent", 58)
    ]
    usual = (
        sum(s.micros for s in before(made, started + 15).weeks(Target(feature="agent"))[0][1:3])
        / 30
    )  # a minute
    assert 10 < sum(call.micros for call in loop) / 5 / usual < 20
    recent = cells([*made.between(started - 10, started + 5), *loop])
    assert surges(before(made, started + 5), recent) != []


def test_what_every_tenant_does_is_told_once_for_the_feature():
    made, minute = traffic(1), minute_of(BUSY)
    calls = made.between(minute - 15, minute)
    more = [call._replace(micros=10 * call.micros) for call in calls if call.feature == "agent"]
    rest = [call for call in calls if call.feature != "agent"]
    rest.append(more[0]._replace(tenant=""))
    found = surges(before(made, minute), cells(more + rest))
    assert [surge.target for surge in found] == [Target(feature="agent")]


def test_where_no_tenant_is_named_the_feature_is_judged_as_a_whole():
    made, minute = traffic(1), minute_of(BUSY)
    nobody = [c._replace(tenant="") for c in made.between(minute - 15, minute)]
    some = made.between(minute - 15, minute)
    loop = made.incident(minute - 1, "", "agent", 700)
    assert surges(before(made, minute), cells(some + nobody[:1])) == []
    found = surges(before(made, minute), cells(some + loop))
    assert [surge.target for surge in found] == [Target(feature="agent")]


def test_two_incidents_are_told_as_two():
    made, minute = traffic(1), minute_of(BUSY)
    calls = [
        *made.between(minute - 15, minute),
        *made.incident(minute - 1, "tenant-07", "agent", 700),
        *made.incident(minute - 1, "tenant-02", "summarise", 1500),
    ]
    found = {surge.target for surge in surges(before(made, minute), cells(calls))}
    assert found == {Target("tenant-07", "agent"), Target("tenant-02", "summarise")}


def test_what_has_begun_is_over_only_well_below_its_threshold():
    """So that a rate that swings about the threshold is told once."""
    made, minute = traffic(1), minute_of(BUSY)
    past, agent = before(made, minute), Target(feature="agent")
    usual = max(s.micros for s in past.weeks(agent)[0])
    swings = {("t", "agent"): Sums(300, 3 * usual, 1)}
    assert surges(past, swings) == []
    assert [surge.target for surge in surges(past, swings, [agent])] == [agent]
    assert surges(past, {("t", "agent"): Sums(300, usual, 1)}, [agent]) == []


def test_a_few_dear_calls_are_no_rate():
    made, minute = traffic(1), minute_of(NIGHT)
    calls = made.between(minute - 15, minute)
    dear = made.incident(minute - 1, "tenant-02", "report", 1)[0]._replace(micros=40_000_000)
    assert surges(before(made, minute), cells([*calls, dear])) == []
    assert surges(before(made, minute), cells([*calls, *[dear] * 40])) != []


def steady(weeks: int, calls: int = 100, **quarters_: int) -> Past:
    """A feature that spends a dollar a quarter, except ``w2_1``: one quarter on, 2 weeks ago."""
    now = minute_of(BUSY) // 15
    feature = {now - n: Sums(calls, 1_000_000, 1) for n in range(weeks * quarters.WEEK)}
    for name, micros in quarters_.items():
        week, after = map(int, name[1:].split("_"))
        feature[now - 1 - week * quarters.WEEK + after] = Sums(calls, micros, 1)
    series = Series({Target(feature="agent"): feature}, min(feature), dt.UTC)
    return series.before(BUSY - dt.timedelta(minutes=15), BUSY)


def spends(micros: int) -> dict[Cell, Sums]:
    return {("", "agent"): Sums(100, micros, 1)}


@pytest.mark.parametrize(
    ("past", "usual"),
    [
        (steady(5), 1),
        (steady(5, w1_0=50_000_000), 1),
        (steady(5, w1_0=50_000_000, w2_0=9_000_000), 9),
        (steady(5, w1_1=9_000_000, w3_1=9_000_000), 9),
        (steady(5, w1_4=9_000_000, w3_4=9_000_000), 1),
        (steady(3, w1_0=9_000_000), 9),
    ],
    ids=["steady", "one incident", "weekly job", "a job that began later", "elsewhen", "two weeks"],
)
def test_the_usual_is_the_second_highest_week_around_this_time(past, usual):
    dollars = 1_000_000
    assert surges(past, spends(4 * usual * dollars - 1)) == []
    [surge] = surges(past, spends(4 * usual * dollars))
    assert (surge.usual_micros, surge.by_week) == (usual * dollars, True)


def test_a_young_installation_takes_twice_as_much_of_the_highest_of_seven_days():
    past = steady(1, w0_0=1_000_000)
    assert surges(past, spends(7_999_999)) == []
    [surge] = surges(past, spends(8_000_000))
    assert not surge.by_week


def test_where_few_calls_are_usual_the_highest_of_seven_days_counts():
    """And a few calls make no week: not even those that were dear."""
    past = steady(5, calls=5, w2_0=50_000_000, w3_0=50_000_000)
    assert surges(past, spends(4_000_000 - 1)) == []
    [surge] = surges(past, spends(4_000_000))
    assert not surge.by_week


def test_nothing_is_told_in_the_first_day_and_of_what_was_never_seen():
    now = minute_of(BUSY) // 15
    young = {now - n: Sums(100, 1_000_000, 1) for n in range(90)}
    past = Series({Target(feature="agent"): young}, min(young), dt.UTC)
    since = BUSY - dt.timedelta(minutes=15)
    assert surges(past.before(since, BUSY), spends(900_000_000)) == []
    assert surges(steady(5), {("", "new"): Sums(100, 900_000_000, 1)}) == []


def test_a_small_sum_is_never_told():
    made, minute = traffic(1), minute_of(NIGHT)
    penny = {("tenant-12", "search"): Sums(500, 900_000, 100_000)}
    assert surges(before(made, minute), penny) == []


def test_a_customer_who_works_in_bursts_is_usual():
    made = traffic(1)
    assert any(
        sum(1 for c in made.between(m, m + 10) if c.tenant == BURSTY and c.feature == "agent") > 20
        for m in range(made.until - MINUTES_OF_WEEK, made.until, 10)
    ), "there are bursts, and the quiet week was quiet all the same"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_prompt_that_grew_tenfold_is_found_in_its_first_quarter(seed):
    made, minute = traffic(seed), minute_of(BUSY)
    calls = made.between(minute - 15, minute)
    longer = [c._replace(tokens=10 * c.tokens) if c.feature == "chat" else c for c in calls]
    found = list(lengths(before(made, minute), cells(longer)))
    assert [length.feature for length in found] == ["chat"]
    assert 5 < found[0].tokens / found[0].usual_tokens < 20


def test_few_calls_or_little_past_say_nothing_about_lengths():
    many, few = Sums(30, 1, 3_000_000), Sums(10, 1, 1_000_000)
    past = [Sums(30, 1, 30_000)] * 96
    assert judge("chat", many, past) is not None
    assert judge("chat", few, past) is None
    assert judge("chat", many, past[:5]) is None
    assert judge("chat", many, [Sums(2, 1, 2_000)] * 96) is None


def test_a_mean_that_a_few_long_calls_make_says_less_than_one_of_many_alike():
    past = [Sums(30, 1, 30_000)] * 96
    alike = Sums(30, 1, 90_000, squared_tokens=30 * 3_000.0**2)
    one_long = Sums(30, 1, 90_000, squared_tokens=29 * 1_000.0**2 + 61_000.0**2)
    told, doubted = judge("chat", alike, past), judge("chat", one_long, past)
    assert told is not None
    assert doubted is not None
    assert told.z > Z > 2 > doubted.z


@pytest.mark.parametrize(("at", "speaks"), [(BUSY, True), (NIGHT, False)])
def test_silence_means_something_by_day_only(at, speaks):
    expected = silent.expected(before(traffic(1), minute_of(at)).weeks(Target()))
    assert (expected >= silent.LEAST_CALLS) is speaks


def test_the_same_time_is_what_clocks_show_also_after_they_were_changed():
    """9:00 in Berlin is 7:00 in summer and 8:00 in winter."""
    since = dt.datetime(2026, 4, 1, 7, 0, tzinfo=dt.UTC)
    zone = traffic(1).zone
    found = quarters.same_time(since, since + dt.timedelta(minutes=15), zone)
    assert [quarters.start(week[1]).hour for week in found] == [8, 8, 8, 8]
    assert [len(week) for week in found] == [3, 3, 3, 3]
    gap = dt.datetime(2026, 4, 5, 0, 50, tzinfo=dt.UTC)  # 2:50, which the week before had not
    found = quarters.same_time(gap, gap + dt.timedelta(minutes=15), zone)
    assert all(3 <= len(week) <= 4 for week in found)
