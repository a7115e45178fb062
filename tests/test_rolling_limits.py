"""A limit with a rolling window, through admission: what is said, and what an edit counts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from tests.stores import NOW, hold, spend, used
from token_allowance import allowance, conf
from token_allowance.exceptions import AllowanceExceeded
from token_allowance.models import Limit

Clock = Callable[[dt.datetime], None]
SLICE = dt.timedelta(minutes=24)  # a sixtieth of a day
FIRST = NOW - (NOW - dt.datetime(2026, 3, 4, tzinfo=dt.UTC)) % SLICE  # the start of NOW's slice
BACK = FIRST + 63 * SLICE


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    def set_to(moment: dt.datetime) -> None:
        monkeypatch.setattr(timezone, "now", lambda: moment)

    set_to(NOW)
    return set_to


def limit(alias: str, seconds: int = 86_400, amount: int = 50) -> Limit:
    return Limit.objects.using(alias).create(
        tenant="*", user="*", unit="tokens", amount=amount, window="rolling",
        rolling_seconds=seconds,
    )  # fmt: skip


def refused(tokens: int = 1) -> AllowanceExceeded:
    with pytest.raises(AllowanceExceeded) as caught:
        hold(tokens, tenant="acme", user="ana")
    return caught.value


def test_a_refusal_says_in_words_how_long_the_window_is_and_when_there_is_room(
    database: str, clock: Clock
) -> None:
    limit(database)
    spend(50, tenant="acme", user="ana")
    error = refused()
    assert str(error) == (
        "user rolling 24-hour budget exceeded: 50 of 50 tokens used; this call may need 1 token. "
        f"It has room for this again at {BACK:%Y-%m-%d %H:%M:%S} (UTC)."
    )
    assert error.code == "user_rolling_24_hour_budget_exceeded"
    assert (error.window, error.resets_at) == ("rolling", BACK)
    assert error.retry_after_seconds == (BACK - NOW).total_seconds()
    document = allowance.problem(error)
    assert (document["window"], document["scope"]) == ("rolling", "user")
    (shown,) = allowance.remaining(tenant="acme", user="ana")
    assert (shown.window, shown.resets_at, shown.state) == ("rolling", BACK, "blocked")
    with pytest.raises(AllowanceExceeded, match="rolling 24-hour"):
        allowance.admit(tenant="acme", user="ana")
    clock(BACK - dt.timedelta(milliseconds=1))
    assert refused().retry_after_seconds == 1
    clock(BACK)
    spend(50, tenant="acme", user="ana")


def test_a_limit_made_or_given_another_length_counts_what_the_ledger_holds(
    database: str, clock: Clock
) -> None:
    for hours, tokens in ((100, 1), (30, 2), (20, 4), (0, 8)):
        clock(NOW - dt.timedelta(hours=hours))
        spend(tokens, tenant="acme", user="ana")
    row = limit(database)
    assert used(tenant="acme", user="ana") == [(12, 0, 38)]
    spend(0, tenant="acme", user="ana")
    Limit.objects.using(database).filter(pk=row.pk).update(rolling_seconds=2 * 86_400)
    assert used(tenant="acme", user="ana") == [(14, 0, 36)]
    assert refused(37).used == 14
    Limit.objects.using(database).filter(pk=row.pk).update(is_active=False)
    spend(30, tenant="acme", user="ana")
    Limit.objects.using(database).filter(pk=row.pk).update(is_active=True)
    assert refused(7).used == 44
    drifted = [drift.key for drift in conf.store().rebuild(NOW)]
    assert not any("rolling/172800" in key for key in drifted)  # the old length: nobody asks for it


@pytest.mark.parametrize(
    ("window", "seconds"),
    [("rolling", 0), ("rolling", 59), ("rolling", 366 * 86_400 + 1), ("day", 86_400)],
)
def test_no_row_can_have_a_length_that_is_none(database: str, window: str, seconds: int) -> None:
    with pytest.raises(IntegrityError), transaction.atomic(database):
        Limit.objects.using(database).create(window=window, rolling_seconds=seconds, amount=1)


def test_case_c66_another_spelling_of_a_window_is_refused_with_the_right_ones() -> None:
    with pytest.raises(Exception, match="rolling:2592000 is the last 30 days"):
        Limit(window="30d", amount=1).clean_fields()
