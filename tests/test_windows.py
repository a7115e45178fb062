from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from token_allowance import windows
from token_allowance.windows import CALENDAR, Span, Window, parse_window, span

MICROSECOND = timedelta(microseconds=1)
ZONES = [
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "Europe/Dublin",
    "America/New_York",
    "America/Sao_Paulo",
    "America/Havana",
    "America/St_Johns",
    "America/Juneau",
    "America/Asuncion",
    "Asia/Beirut",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Asia/Shanghai",
    "Asia/Tehran",
    "Asia/Pyongyang",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Africa/Monrovia",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Kwajalein",
    "Atlantic/Azores",
    "Antarctica/Troll",
]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def bounds(
    window: Window, at: str, zone: str, anchor_day: int = 1
) -> tuple[datetime | None, datetime | None]:
    found = span(window, utc(at), ZoneInfo(zone), anchor_day)
    return found.start, found.end


@st.composite
def cases(draw):
    window = draw(st.sampled_from([w for w in CALENDAR if w is not Window.TOTAL]))
    zone = draw(st.sampled_from(ZONES))
    at = draw(st.datetimes(datetime(1860, 1, 1), datetime(2100, 1, 1)))  # noqa: DTZ001
    anchor = draw(st.integers(1, {Window.WEEK: 7, Window.MONTH: 31}.get(window, 1)))
    return window, zone, at.replace(tzinfo=UTC), anchor


def check_tiles(window: Window, zone_name: str, at: datetime, anchor: int) -> None:
    zone = ZoneInfo(zone_name)

    def fresh(instant: datetime) -> Span:
        windows._last.clear()
        return span(window, instant, zone, anchor)

    found = fresh(at)
    assert found.contains(at)
    assert found.start is not None
    assert found.end is not None
    assert fresh(found.start) == found
    assert fresh(found.end - MICROSECOND) == found
    assert fresh(found.end).start == found.end
    assert fresh(found.start - MICROSECOND).end == found.start


@settings(max_examples=300, deadline=None)
@given(cases())
@example((Window.DAY, "America/Juneau", utc("1867-10-18T12:00"), 1))
@example((Window.HOUR, "America/Juneau", utc("1867-10-18T23:59:59"), 1))
def test_windows_tile_time(case):
    check_tiles(*case)


@pytest.mark.parametrize(
    ("zone", "change"),
    [
        ("America/Sao_Paulo", "2018-11-04T03:00"),  # midnight is missing
        ("America/Sao_Paulo", "2018-02-18T02:00"),  # back from midnight to 23:00
        ("Asia/Beirut", "2022-03-26T22:00"),  # midnight is missing
        ("Africa/Cairo", "2023-04-27T22:00"),  # midnight is missing
        ("America/Havana", "2023-11-05T05:00"),  # midnight comes twice
        ("America/St_Johns", "2010-11-07T02:31"),  # back from 00:01 to 23:01
        ("Australia/Lord_Howe", "2026-04-04T15:00"),  # back by half an hour
        ("Australia/Lord_Howe", "2026-10-03T15:30"),  # ahead by half an hour
        ("Europe/Berlin", "2026-10-25T01:00"),
        ("Pacific/Apia", "2011-12-30T10:00"),  # a day is missing
        ("Pacific/Kwajalein", "1993-08-21T12:00"),  # a day is missing
        ("Africa/Monrovia", "1972-01-07T00:44:30"),  # offset of -0:44:30 until then
        ("Asia/Kathmandu", "1985-12-31T18:30"),  # +5:30 to +5:45
    ],
)
@pytest.mark.parametrize("window", [w for w in CALENDAR if w is not Window.TOTAL])
def test_windows_tile_time_around_a_change_of_the_clock(zone, change, window):
    for minutes in (-1440, -90, -61, -31, -29, -1, 0, 1, 14, 29, 31, 59, 61, 90, 1440):
        check_tiles(window, zone, utc(change) + timedelta(minutes=minutes), 1)
    check_tiles(window, zone, utc(change) - MICROSECOND, 1)


@settings(max_examples=200, deadline=None)
@given(cases(), st.integers(0, 10**12))
def test_what_is_remembered_is_what_would_be_found(case, shift):
    window, zone_name, at, anchor = case
    zone = ZoneInfo(zone_name)
    span(window, at, zone, anchor)
    other = at + timedelta(microseconds=shift)
    remembered = span(window, other, zone, anchor)
    windows._last.clear()
    assert remembered == span(window, other, zone, anchor)


def test_the_memory_is_bounded():
    windows._last.clear()
    at = utc("2026-08-19T12:00")
    for seconds in range(3_000):
        span(Window.DAY, at, timezone(timedelta(seconds=seconds)))
    assert len(windows._last) <= windows._REMEMBERED_SPANS


def test_case_c63_the_day_ends_at_midnight_of_the_zone():
    shanghai = ZoneInfo("Asia/Shanghai")
    before, after = utc("2026-08-19T15:59:59"), utc("2026-08-19T16:00")
    today, tomorrow = span(Window.DAY, before, shanghai), span(Window.DAY, after, shanghai)
    assert today.seconds_left(before) == 1
    assert today.end == tomorrow.start == after
    assert tomorrow.seconds_left(after) == 86_400


@pytest.mark.parametrize(
    ("window", "at", "zone", "start", "end"),
    [
        ("minute", "2026-08-19T12:03:04", "UTC", "2026-08-19T12:03", "2026-08-19T12:04"),
        ("hour", "2026-08-19T12:03:04", "UTC", "2026-08-19T12:00", "2026-08-19T13:00"),
        ("day", "2026-08-19T12:03:04", "UTC", "2026-08-19T00:00", "2026-08-20T00:00"),
        ("week", "2026-08-19T12:03:04", "UTC", "2026-08-17T00:00", "2026-08-24T00:00"),
        ("month", "2026-08-19T12:03:04", "UTC", "2026-08-01T00:00", "2026-09-01T00:00"),
        ("month", "2026-12-31T23:59:59", "UTC", "2026-12-01T00:00", "2027-01-01T00:00"),
        # C66: on 1 February a month's budget is fresh
        ("month", "2026-02-01T00:00", "UTC", "2026-02-01T00:00", "2026-03-01T00:00"),
        (
            "month",
            "2026-03-31T22:00",
            "Europe/Berlin",
            "2026-03-31T22:00",
            "2026-04-30T22:00",
        ),
    ],
)
def test_windows_of_the_calendar(window, at, zone, start, end):
    assert bounds(Window(window), at, zone) == (utc(start), utc(end))


@pytest.mark.parametrize(
    ("at", "zone", "start", "end", "hours"),
    [
        ("2026-03-29T12:00", "Europe/Berlin", "2026-03-28T23:00", "2026-03-29T22:00", 23),
        ("2026-10-25T12:00", "Europe/Berlin", "2026-10-24T22:00", "2026-10-25T23:00", 25),
        ("2018-11-04T12:00", "America/Sao_Paulo", "2018-11-04T03:00", "2018-11-05T02:00", 23),
        ("2018-02-17T12:00", "America/Sao_Paulo", "2018-02-17T02:00", "2018-02-18T03:00", 25),
        ("2022-03-27T12:00", "Asia/Beirut", "2022-03-26T22:00", "2022-03-27T21:00", 23),
        ("2023-04-28T12:00", "Africa/Cairo", "2023-04-27T22:00", "2023-04-28T21:00", 23),
        ("2023-11-05T12:00", "America/Havana", "2023-11-05T04:00", "2023-11-06T05:00", 25),
        ("2010-11-07T12:00", "America/St_Johns", "2010-11-07T02:30", "2010-11-08T03:30", 25),
        ("2026-04-05T00:00", "Australia/Lord_Howe", "2026-04-04T13:00", "2026-04-05T13:30", 24.5),
        ("2011-12-30T09:59:59", "Pacific/Apia", "2011-12-29T10:00", "2011-12-30T10:00", 24),
        ("2011-12-30T10:00", "Pacific/Apia", "2011-12-30T10:00", "2011-12-31T10:00", 24),
    ],
)  # fmt: skip
def test_days_on_which_the_clock_is_changed(at, zone, start, end, hours):
    assert bounds(Window.DAY, at, zone) == (utc(start), utc(end))
    assert utc(end) - utc(start) == timedelta(hours=hours)


@pytest.mark.parametrize(
    ("at", "zone", "start", "end"),
    [
        ("2026-08-19T12:03:04", "Asia/Kolkata", "2026-08-19T11:30", "2026-08-19T12:30"),
        ("2026-08-19T12:03:04", "Asia/Kathmandu", "2026-08-19T11:15", "2026-08-19T12:15"),
        # 02:00 to 03:00 comes twice in Berlin: two windows
        ("2026-10-25T00:30", "Europe/Berlin", "2026-10-25T00:00", "2026-10-25T01:00"),
        ("2026-10-25T01:30", "Europe/Berlin", "2026-10-25T01:00", "2026-10-25T02:00"),
        # the clock is put back at 00:01, in the middle of an elapsed hour
        ("2010-11-07T02:30:30", "America/St_Johns", "2010-11-07T02:30", "2010-11-07T03:30"),
        ("2010-11-07T03:15", "America/St_Johns", "2010-11-07T02:30", "2010-11-07T03:30"),
        # back from 02:00 to 01:30: half an hour stands alone
        ("2026-04-04T14:59:59", "Australia/Lord_Howe", "2026-04-04T14:00", "2026-04-04T15:00"),
        ("2026-04-04T15:00", "Australia/Lord_Howe", "2026-04-04T15:00", "2026-04-04T15:30"),
        ("2026-04-04T15:30", "Australia/Lord_Howe", "2026-04-04T15:30", "2026-04-04T16:30"),
        # an offset of -0:44:30 ended inside an hour of its own
        ("1972-01-07T00:30", "Africa/Monrovia", "1972-01-06T23:44:30", "1972-01-07T00:44:30"),
        ("1972-01-07T00:44:30", "Africa/Monrovia", "1972-01-07T00:44:30", "1972-01-07T01:00"),
    ],
)  # fmt: skip
def test_hours_follow_the_local_clock(at, zone, start, end):
    assert bounds(Window.HOUR, at, zone) == (utc(start), utc(end))


@pytest.mark.parametrize(
    ("anchor_day", "start", "end"),
    [
        (1, "2026-08-17T00:00", "2026-08-24T00:00"),  # 19 August 2026 is a Wednesday
        (3, "2026-08-19T00:00", "2026-08-26T00:00"),
        (4, "2026-08-13T00:00", "2026-08-20T00:00"),
        (7, "2026-08-16T00:00", "2026-08-23T00:00"),
    ],
)
def test_a_week_opens_on_its_anchor(anchor_day, start, end):
    assert bounds(Window.WEEK, "2026-08-19T12:00", "UTC", anchor_day) == (utc(start), utc(end))


@pytest.mark.parametrize(
    ("at", "anchor_day", "start", "end"),
    [
        ("2026-02-15T00:00", 31, "2026-01-31T00:00", "2026-02-28T00:00"),
        ("2026-02-28T00:00", 31, "2026-02-28T00:00", "2026-03-31T00:00"),
        ("2028-02-29T00:00", 31, "2028-02-29T00:00", "2028-03-31T00:00"),
        ("2028-02-29T00:00", 29, "2028-02-29T00:00", "2028-03-29T00:00"),
        ("2026-02-28T00:00", 30, "2026-02-28T00:00", "2026-03-30T00:00"),
        ("2026-03-30T12:00", 31, "2026-02-28T00:00", "2026-03-31T00:00"),
        ("2026-04-30T00:00", 31, "2026-04-30T00:00", "2026-05-31T00:00"),
        ("2026-01-14T00:00", 15, "2025-12-15T00:00", "2026-01-15T00:00"),
        ("2026-12-15T00:00", 15, "2026-12-15T00:00", "2027-01-15T00:00"),
    ],
)
def test_a_month_opens_on_its_anchor_or_its_last_day(at, anchor_day, start, end):
    assert bounds(Window.MONTH, at, "UTC", anchor_day) == (utc(start), utc(end))


def test_total_has_no_bounds():
    found = span(Window.TOTAL, utc("2026-08-19T12:00"), UTC)
    assert found == Span(None, None)
    assert found.contains(utc("1900-01-01T00:00"))
    assert found.seconds_left(utc("2026-08-19T12:00")) is None


def test_an_instant_may_come_in_any_zone():
    at = utc("2026-08-19T22:30")
    berlin = ZoneInfo("Europe/Berlin")
    found = span(Window.DAY, at, berlin)
    for zone in (berlin, ZoneInfo("Asia/Tokyo"), timezone(timedelta(hours=-7))):
        assert span(Window.DAY, at.astimezone(zone), berlin) == found
        assert found.contains(at.astimezone(zone))
        assert found.seconds_left(at.astimezone(zone)) == found.seconds_left(at)
    assert found.start is not None
    assert found.start.tzinfo is UTC


def test_seconds_left_are_rounded_up_and_never_zero():
    minute = span(Window.MINUTE, utc("2026-08-19T12:00"), UTC)
    assert minute.seconds_left(utc("2026-08-19T12:00")) == 60
    assert minute.seconds_left(utc("2026-08-19T12:00:00.000001")) == 60
    assert minute.seconds_left(utc("2026-08-19T12:00:58.999999")) == 2
    assert minute.seconds_left(utc("2026-08-19T12:00:59.999999")) == 1
    assert minute.seconds_left(utc("2026-08-19T12:05")) == 1


def test_a_span_is_half_open():
    day = span(Window.DAY, utc("2026-08-19T12:00"), UTC)
    assert day.contains(utc("2026-08-19T00:00"))
    assert not day.contains(utc("2026-08-20T00:00"))


@pytest.mark.parametrize("window", CALENDAR)
def test_a_naive_instant_is_refused(window):
    naive = datetime(2026, 8, 19, 12)  # noqa: DTZ001
    found = span(window, naive.replace(tzinfo=UTC), UTC)
    with pytest.raises(ValueError, match="naive"):
        span(window, naive, UTC)
    with pytest.raises(ValueError, match="naive"):
        found.contains(naive)
    with pytest.raises(ValueError, match="naive"):
        found.seconds_left(naive)


@pytest.mark.parametrize(
    ("window", "anchor_day"),
    [(Window.WEEK, 0), (Window.WEEK, 8), (Window.MONTH, 0), (Window.MONTH, 32), (Window.MONTH, -1)],
)
def test_an_anchor_out_of_range_is_refused(window, anchor_day):
    with pytest.raises(ValueError, match=f"anchor day of a {window} is 1 to"):
        span(window, utc("2026-08-19T12:00"), UTC, anchor_day)


@pytest.mark.parametrize(
    "text",
    [
        "daily",
        "24h",
        "1d",
        "30d",
        "1mo",
        "Day",
        "DAY",
        "",
        " day",
        "rolling:",
        "rolling:1d",
        "rolling:-60",
    ],
)
def test_case_c66_other_spellings_are_refused_with_the_right_ones(text):
    with pytest.raises(ValueError, match="minute, hour, day, week, month, total"):
        parse_window(text)
    with pytest.raises(ValueError, match="not a valid Window"):
        Window(text)


def test_case_c66_a_rolling_window_needs_its_length():
    with pytest.raises(ValueError, match="rolling:2592000 is the last 30 days"):
        parse_window("rolling")


def test_case_c66_each_window_has_one_spelling_and_one_adjective():
    assert {w: parse_window(w.value) for w in CALENDAR} == {w: (w, 0) for w in CALENDAR}
    assert parse_window("rolling:2592000") == (Window.ROLLING, 2_592_000)
    assert {str(w): w.adjective for w in Window} == {
        "minute": "per-minute",
        "hour": "hourly",
        "day": "daily",
        "week": "weekly",
        "month": "monthly",
        "total": "total",
        "rolling": "rolling",
    }
