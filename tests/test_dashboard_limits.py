"""Limits on the dashboard: how full they are, and what a change would do before it is saved."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests import dashboards
from token_allowance import spend, testing
from token_allowance.models import (
    Adjustment,
    Alert,
    AlertRule,
    DegradeRule,
    HourlySpend,
    Limit,
    LimitRevision,
    Reservation,
    Tenant,
)
from token_allowance_dashboard import replay
from token_allowance_dashboard.rulebook import Rulebook

NOW = dt.datetime(2026, 11, 30, 12, 7, tzinfo=dt.UTC)
DOLLAR = 1_000_000
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _now(monkeypatch):
    monkeypatch.setattr(timezone, "now", lambda: NOW)


@pytest.fixture
def ana(client):
    client.force_login(dashboards.owner())
    return client


def spent(dollars, *, hours_ago=1, calls=1, **fields):
    """Calls that cost so many dollars each, rolled up."""
    at = NOW - dt.timedelta(hours=hours_ago)
    micros = int(dollars * DOLLAR)
    Reservation.objects.bulk_create(
        dashboards.call(at, cost_micros=micros, cost_exact=micros, **fields) for _ in range(calls)
    )
    spend.verify(NOW, dt.timedelta(days=31))


def draft(step="preview", **given):
    """What the form posts for a limit of everybody's month."""
    data = {
        "amount": "5.00", "unit": "cost", "window": "month", "rolling_seconds": "",
        "anchor_day": "1", "time_zone": "", "notify_at": "70, 90, 100", "degrade_at": "90",
        "hard_stop_percent": "100", "mode": "", "is_active": "on", "plan": "", "expires_at": "",
        "reason": "as agreed", "step": step,
    }  # fmt: skip
    for name in ("tenant", "user", "session", "feature", "model"):
        value = given.pop(name, "")
        choice = {"": "together", "*": "each"}.get(value, "only")
        data |= {f"{name}_0": choice, f"{name}_1": value if choice == "only" else ""}
    return data | given


def test_the_list_says_how_full_the_fullest_budget_is_and_what_happens_then(ana):
    DegradeRule.objects.create(from_model="claude-sonnet-5", to_model="claude-haiku-5")
    spent(3, tenant="acme")
    spent(1, tenant="globex")
    each = Limit.objects.create(tenant="*", window="month", amount=4 * DOLLAR)
    quiet = Limit.objects.create(window="day", amount=100 * DOLLAR, mode="observe", degrade_at=None)
    page = ana.get("/allowance/limits/")
    first, second = page.context["lines"]
    assert (first.limit, second.limit) == (each, quiet)
    assert (first.fullest.whose, first.percent, first.fullest.state) == ("acme", 75, "warning")
    assert second.fullest.used == 4 * DOLLAR
    said = page.content.decode()
    assert "claude-sonnet-5 → claude-haiku-5" in said
    assert "<strong>refuses new calls</strong>" in said
    assert "only notes" in said
    assert "11 h 53 min" in said  # until the day and the month end


def test_a_limit_says_how_often_it_was_reached_and_how_far_it_was_passed(ana):
    limit = Limit.objects.create(tenant="acme", window="month", amount=10 * DOLLAR)
    rule = AlertRule.objects.filter(kind="budget").first() or AlertRule.objects.create(
        kind="budget", name="ladder"
    )
    for n, value in enumerate((10_000_000, 10_410_000)):
        Alert.objects.create(
            rule=rule, target=f"k{n}", window="w", rung=100, amount=limit.amount, value=value,
            severity="critical", tenant="acme", title="acme reached it", unit="cost",
            snapshot={"limit": limit.pk}, fired_at=NOW - dt.timedelta(days=n),
        )  # fmt: skip
    said = ana.get("/allowance/limits/").content.decode()
    assert "2 times" in said
    assert "$0.41" in said
    assert "acme reached it" in ana.get(f"/allowance/limits/{limit.pk}/").content.decode()


def test_without_limits_the_page_offers_one_from_what_was_spent(ana):
    spent(10, hours_ago=50)
    said = ana.get("/allowance/limits/").content.decode()
    assert "No limits: spending is unlimited." in said
    form = ana.get("/allowance/limits/new/?first=1").context["form"]
    assert (form["amount"].value(), form["mode"].value(), form["window"].value()) == (
        "12.00", "observe", "month",
    )  # fmt: skip


def test_a_new_limit_starts_from_the_row_that_it_was_asked_for(ana):
    page = ana.get("/allowance/limits/new/?feature=agent&tenant=acme&model=gpt-5-mini")
    form = page.context["form"]
    assert [form.initial[n] for n in ("tenant", "feature", "model", "user")] == [
        "acme", "agent", "gpt-5-mini", "",
    ]  # fmt: skip
    assert 'value="agent"' in page.content.decode()
    assert ana.get("/allowance/limits/new/?tenant=%00&feature=*").status_code == 200


def test_the_preview_counts_what_the_last_thirty_days_would_have_lost(ana):
    for day in (2, 3, 5):  # each of them: $1.20 in 12 calls
        spent(0.1, hours_ago=24 * day, calls=12, tenant="acme")
    spent(0.5, hours_ago=24 * 9, calls=1, tenant="globex")
    page = ana.post("/allowance/limits/new/", draft(window="day", amount="1.00"))
    found = page.context["preview"].replay
    assert len(found.days) == 3
    assert (found.calls, found.micros, found.tenants) == (6, 600_000, 1)
    said = page.content.decode()
    assert "reached on <strong>3 days</strong>" in said
    assert "<strong>6 calls</strong> worth <strong>$0.60</strong>" in said
    assert "An estimate from figures of a quarter of an hour each" in said
    assert not Limit.objects.exists()


def test_saving_an_amount_below_what_is_spent_names_who_is_blocked(ana):
    spent(3, tenant="acme")
    spent(1, tenant="globex")
    limit = Limit.objects.create(tenant="*", window="month", amount=50 * DOLLAR)
    address = f"/allowance/limits/{limit.pk}/edit/"
    page = ana.post(address, draft(tenant="*", amount="2"))
    assert [one.whose for one in page.context["preview"].blocked] == ["acme"]
    said = page.content.decode()
    assert "Saving blocks acme at once" in said
    assert "What is spent so far in this window is kept." in said
    limit.refresh_from_db()
    assert limit.amount == 50 * DOLLAR
    assert ana.post(address, draft("save", tenant="*", amount="2")).status_code == 302
    limit.refresh_from_db()
    assert limit.amount == 2 * DOLLAR
    note = LimitRevision.objects.get()
    assert (note.by, note.source, note.reason) == ("ana", "dashboard", "as agreed")
    assert (note.before, note.after) == ({"amount": 50 * DOLLAR}, {"amount": 2 * DOLLAR})
    shown = ana.get(f"/allowance/limits/{limit.pk}/").content.decode()
    assert "amount $50.00 → $2.00" in shown


def test_a_limit_that_observes_or_is_wide_enough_blocks_nobody(ana):
    spent(3, tenant="acme")
    for given in ({"amount": "2", "mode": "observe"}, {"amount": "4"}, {"amount": "0.01",
                  "is_active": ""}):  # fmt: skip
        page = ana.post("/allowance/limits/new/", draft(tenant="*", **given))
        assert page.context["preview"].blocked == []


def test_from_observing_to_refusing_is_said_and_counted(ana):
    limit = Limit.objects.create(window="month", amount=5 * DOLLAR, mode="observe")
    Reservation.objects.bulk_create(
        dashboards.call(NOW - dt.timedelta(hours=2), flags=["would_refuse"]) for _ in range(4)
    )
    page = ana.post(f"/allowance/limits/{limit.pk}/edit/", draft(mode="enforce"))
    assert page.context["preview"].begins_to_refuse
    assert "4 such calls were noted" in page.content.decode()


def test_each_saving_needs_a_reason(ana):
    for step in ("preview", "save"):
        page = ana.post("/allowance/limits/new/", draft(step, reason=" "))
        assert "reason" in page.context["form"].errors
    assert not Limit.objects.exists()


def test_the_same_limit_twice_is_refused_in_words(ana):
    assert ana.post("/allowance/limits/new/", draft("save")).status_code == 302
    again = ana.post("/allowance/limits/new/", draft("save"))
    assert "An active limit with this scope, window and unit exists." in again.content.decode()
    assert Limit.objects.count() == LimitRevision.objects.count() == 1


def test_a_reset_is_a_correction_with_who_and_why(ana):
    spent(3, tenant="acme")
    limit = Limit.objects.create(tenant="*", window="month", amount=4 * DOLLAR)
    address = f"/allowance/limits/{limit.pk}/reset/?tenant=acme"
    assert "$3.00" in ana.get(address).content.decode()
    assert "Say why" in ana.post(address, {"reason": " "}).content.decode()
    assert not Adjustment.objects.exists()
    assert ana.post(address, {"reason": "a broken client"}).status_code == 302
    made = Adjustment.objects.get()
    assert (made.amount, made.by, made.reason) == (-3 * DOLLAR, "ana", "a broken client")
    assert Reservation.objects.count() == 1
    page = ana.get(f"/allowance/limits/{limit.pk}/")
    assert [one.used for one in page.context["standings"]] == [0]
    assert "a broken client" in page.content.decode()
    for wrong in ("", "?tenant=", "?user=u_1"):
        assert ana.get(f"/allowance/limits/{limit.pk}/reset/{wrong}").status_code == 404


# Who may do what (case C91)


@pytest.mark.parametrize("permissions", [(), ("change_limitincrease", "add_limitincrease")])
def test_c91_writing_needs_the_one_permission_on_the_whole_object(client, permissions):
    limit = Limit.objects.create(window="month", amount=5 * DOLLAR)
    client.force_login(dashboards.person("bo", "view_dashboard", *permissions))
    for address in ("new/", f"{limit.pk}/edit/", f"{limit.pk}/reset/"):
        assert client.get(f"/allowance/limits/{address}").status_code == 403
        for given in (draft("save", amount="999999"), draft("save", mode="observe"), {}):
            assert client.post(f"/allowance/limits/{address}", given).status_code == 403
    assert Limit.objects.get().amount == 5 * DOLLAR
    assert "Changing limits needs the permission" in client.get("/allowance/limits/").text
    tried = LimitRevision.objects.order_by("id").values_list("limit_id", "by", "before", "after")
    assert list(tried) == [(0, "bo", {}, {})] * 3 + [(limit.pk, "bo", {}, {})] * 6
    client.logout()
    assert client.post(f"/allowance/limits/{limit.pk}/edit/", draft("save")).status_code == 302
    assert LimitRevision.objects.count() == 9


def test_c91_to_change_is_not_to_add(client):
    client.force_login(dashboards.person("bo", "view_dashboard", "change_limit"))
    assert client.post("/allowance/limits/new/", draft("save")).status_code == 403


def test_staff_of_some_tenants_touch_only_limits_that_name_one_of_theirs(client, settings):
    settings.TOKEN_ALLOWANCE = {"STAFF_TENANT_FILTER": lambda user: ["acme"]}
    spent(3, tenant="acme")
    spent(9, tenant="globex")
    everyone = Limit.objects.create(window="month", amount=5 * DOLLAR)
    each = Limit.objects.create(tenant="*", window="month", amount=5 * DOLLAR)
    own = Limit.objects.create(tenant="acme", window="day", amount=5 * DOLLAR)
    other = Limit.objects.create(tenant="globex", window="day", amount=5 * DOLLAR)
    LimitRevision.note(each, {}, by="eva", source="admin", reason="globex asked")
    client.force_login(dashboards.owner())
    page = client.get("/allowance/limits/")
    assert {line.limit for line in page.context["lines"]} == {each, own}
    assert "globex" not in page.text
    shown = client.get(f"/allowance/limits/{each.pk}/")
    assert [one.whose for one in shown.context["standings"]] == ["acme"]
    assert "globex" not in shown.text
    for row, status in ((everyone, 404), (each, 403), (own, 200), (other, 404)):
        address = f"/allowance/limits/{row.pk}/edit/"
        given = draft("preview", tenant=row.tenant, window=row.window)
        assert client.get(address).status_code == status
        assert client.post(address, given).status_code == status
    for tenant in ("", "*", "globex"):
        for address in (f"/allowance/limits/{own.pk}/edit/", "/allowance/limits/new/"):
            answer = client.post(address, draft("save", tenant=tenant, window="day"))
            assert "Name one of the tenants that you look after." in answer.text
    assert client.get(f"/allowance/limits/{each.pk}/reset/?tenant=globex").status_code == 404
    assert client.post("/allowance/limits/new/", draft("save", tenant="acme")).status_code == 302


# The arithmetic of a replay


def quarters(*used, start, each=900, **fields):
    """Roll-ups of one dollar a unit, one each quarter of an hour."""
    HourlySpend.objects.bulk_create(
        HourlySpend(
            starts_at=start + dt.timedelta(seconds=n * each), calls=10,
            cost_micros=dollars * DOLLAR, input_tokens=dollars * 100,
            **{"tenant": "acme", "feature": "chat", **fields},
        )
        for n, dollars in enumerate(used)
    )  # fmt: skip


def replayed(**fields):
    limit = Limit(**{"amount": 10 * DOLLAR, "window": "day"} | fields)
    book = Rulebook(NOW, changed=limit)
    return replay.run(book.rule(limit), book, NOW)


MORNING = dt.datetime(2026, 11, 20, 9, tzinfo=dt.UTC)


def test_what_goes_beyond_the_amount_is_refused_and_not_counted_as_used():
    quarters(4, 4, 4, 4, start=MORNING)
    found = replayed()
    assert found.micros == 6 * DOLLAR  # 2 of the third, all of the fourth
    assert found.calls == 5 + 10
    assert found.days == {MORNING.date()}


def test_each_window_begins_anew_in_the_zone_of_the_limit():
    start = dt.datetime(2026, 11, 20, 18, 0, tzinfo=dt.UTC)  # 23:45 in Kathmandu
    quarters(8, 8, start=start)
    assert replayed(time_zone="Asia/Kathmandu").calls == 0
    assert replayed(time_zone="UTC").micros == 6 * DOLLAR


def test_a_tenants_own_zone_and_a_narrower_limit_are_obeyed():
    Tenant.objects.create(key="acme", time_zone="Asia/Kathmandu")
    start = dt.datetime(2026, 11, 20, 18, 0, tzinfo=dt.UTC)
    quarters(8, 8, start=start)
    quarters(8, 8, start=start, tenant="globex")
    quarters(8, 8, start=start, tenant="initech")
    Limit.objects.create(tenant="initech", window="day", amount=99 * DOLLAR)
    found = replayed(tenant="*")
    assert [(one.tenant, one.micros) for one in found.by_tenant] == [("globex", 6 * DOLLAR)]


def test_a_rolling_window_lets_go_what_is_older():
    quarters(6, 6, start=MORNING, each=3_600)
    assert replayed(window="rolling", rolling_seconds=7_200).micros == 2 * DOLLAR
    assert replayed(window="rolling", rolling_seconds=1_800).micros == 0


def test_calls_tokens_models_and_nothing_at_all():
    quarters(4, 4, start=MORNING, model="gpt-5-mini")
    quarters(1, start=MORNING, model="gpt-5-mini-2025-08-07")
    assert replayed(unit="calls", amount=25).calls == 5
    assert replayed(unit="tokens", amount=800).micros == DOLLAR
    assert replayed(model="gpt-5-mini", amount=8 * DOLLAR).micros == DOLLAR
    assert replayed(amount=0).calls == 30
    assert replayed(user="*", amount=0).calls == 0
    assert not replayed(session="*").known


def test_a_window_that_began_before_the_thirty_days_is_counted_whole():
    first = NOW - dt.timedelta(days=32)  # 29 October
    quarters(9, start=first)
    quarters(9, start=NOW - dt.timedelta(days=29, hours=12))  # 31 October or 1 November
    october = replayed(window="total")
    assert october.micros == 8 * DOLLAR


def test_only_the_tenants_of_a_plan_are_counted_for_it():
    Tenant.objects.create(key="acme", plan="pro")
    quarters(8, 8, start=MORNING)
    quarters(8, 8, start=MORNING, tenant="globex")
    assert [one.tenant for one in replayed(tenant="*", plan="pro").by_tenant] == ["acme"]


def test_the_number_of_queries_does_not_grow(ana):
    def queries():
        with CaptureQueriesContext(connection) as made:
            assert ana.get("/allowance/limits/").status_code == 200
        return len(made)

    def called(*tenants):
        for name in tenants:
            Limit.objects.create(tenant=name, window="month", amount=5 * DOLLAR)
            testing.spend("0.01", tenant=name, user="u")
        spend.fold(NOW)

    Limit.objects.create(tenant="*", user="*", window="month", amount=5 * DOLLAR)
    called("t0")
    queries()
    few = queries()
    called(*(f"t{n}" for n in range(1, 30)))
    queries()
    assert queries() == few < 30
