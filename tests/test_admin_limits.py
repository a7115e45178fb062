"""Limits in the admin: rolling windows in words, and more for a while."""

from __future__ import annotations

import datetime as dt

import pytest
from django.contrib.auth.models import Permission, User
from django.utils import timezone

from tests.test_admin import limit_form, page, settled
from token_allowance.models import Limit, LimitIncrease, LimitRevision

pytestmark = pytest.mark.django_db
ROLLING = {"window": "rolling", "rolling_seconds": "24 hours"}


def increase_form(**given):
    """What the form of a limit posts when more is granted on it."""
    until = timezone.localtime(timezone.now() + dt.timedelta(hours=2))
    row = {
        "tenant": "acme",
        "user": "",
        "amount": "5",
        "until_0": f"{until:%Y-%m-%d}",
        "until_1": f"{until:%H:%M:%S}",
        "reason": "a launch",
        **given,
    }
    counts = {"increases-TOTAL_FORMS": "1", "increases-INITIAL_FORMS": "0"}
    return limit_form() | counts | {f"increases-0-{name}": value for name, value in row.items()}


def test_a_rolling_length_is_written_and_shown_in_words(admin_client):
    assert admin_client.post(page("limit", "add"), limit_form(**ROLLING)).status_code == 302
    limit = Limit.objects.get()
    assert (limit.window, limit.rolling_seconds) == ("rolling", 86_400)
    assert str(limit).startswith("$0.50 per rolling 24-hour window for each user")
    assert "the last 24 hours" in admin_client.get(page("limit")).text
    form = admin_client.get(page("limit", "change", limit.pk)).text
    assert 'value="24 hours"' in form
    assert "what is spent at 14:05 comes back the next day at 14:05" in form


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"window": "rolling"}, "Say how long: 24 hours, 30 days."),
        ({"rolling_seconds": "24 hours"}, "Only the last hours or days have a length."),
        (ROLLING | {"rolling_seconds": "1mo"}, "such as 24 hours or 30 days; a calendar month is"),
        (ROLLING | {"rolling_seconds": "2 seconds"}, "A rolling window lasts 60 seconds to 366"),
        (ROLLING | {"anchor_day": "3"}, "The first day can be 1"),
    ],
)
def test_case_c66_what_is_no_rolling_window_is_said_in_words(admin_client, given, text):
    answer = admin_client.post(page("limit", "add"), limit_form(**given))
    assert answer.status_code == 200
    assert text in answer.text
    assert not Limit.objects.exists()


def test_two_lengths_are_two_limits_and_the_same_length_twice_is_refused(admin_client):
    for length in ("1 day", "2 days"):
        admin_client.post(page("limit", "add"), limit_form(**ROLLING | {"rolling_seconds": length}))
    assert Limit.objects.count() == 2
    answer = admin_client.post(page("limit", "add"), limit_form(**ROLLING))
    assert "An active limit with this scope, window and unit exists." in answer.text


def test_more_for_a_while_is_granted_by_whoever_is_signed_in(admin_client):
    limit = Limit.objects.create(tenant="*", user="*", amount=500_000)
    answer = admin_client.post(page("limit", "change", limit.pk), increase_form())
    assert answer.status_code == 302
    made = LimitIncrease.objects.get()
    assert (made.limit, made.tenant, made.user) == (limit, "acme", "")
    assert (made.amount, made.by, made.reason) == (5_000_000, "admin", "a launch")
    shown = admin_client.get(page("limit", "change", limit.pk)).text
    assert "$5.00 more for tenant acme, until" in shown
    assert "by admin: a launch" in shown


def test_what_was_granted_is_listed_and_can_be_neither_changed_nor_removed(admin_client):
    limit = Limit.objects.create(tenant="*", amount=1, unit="tokens")
    row = LimitIncrease.objects.create(limit=limit, amount=1_000, until=timezone.now())
    shown = admin_client.get(page("limit", "change", limit.pk)).text
    assert "1,000 tokens more for all of them, ended" in shown
    assert 'increases-0-DELETE"' not in shown
    changed = increase_form(amount="7") | {
        "unit": "tokens",
        "amount": "1",
        "increases-INITIAL_FORMS": "1",
        "increases-0-id": str(row.pk),
    }
    admin_client.post(page("limit", "change", limit.pk), changed)
    row.refresh_from_db()
    assert row.amount == 1_000


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"amount": "-5"}, "An amount must not be negative"),
        ({"amount": "0"}, "Write more than 0."),
        ({"amount": "five"}, "is not an amount of dollars"),
        ({"until_0": "2020-01-01"}, "This moment has passed."),
        ({"until_0": "soon"}, "Enter a valid date."),
        ({"tenant": "*"}, "all of its values at once: leave it empty"),
    ],
)
def test_what_cannot_be_granted_is_said_beside_its_field(admin_client, given, text):
    limit = Limit.objects.create(tenant="*", user="*", amount=500_000)
    answer = admin_client.post(page("limit", "change", limit.pk), increase_form(**given))
    assert answer.status_code == 200
    assert text in answer.text
    assert not LimitIncrease.objects.exists()


def test_an_amount_is_read_in_the_unit_that_the_limit_has_after_the_change(admin_client):
    limit = Limit.objects.create(tenant="*", user="*", amount=500_000)
    data = increase_form(amount="7000") | {"unit": "tokens", "amount": "9000"}
    assert admin_client.post(page("limit", "change", limit.pk), data).status_code == 302
    assert LimitIncrease.objects.get().amount == 7_000


def test_a_limit_of_one_tenant_is_raised_without_naming_it_again(admin_client):
    limit = Limit.objects.create(tenant="acme", user="*", amount=500_000)
    data = increase_form(tenant="globex") | {"tenant_0": "only", "tenant_1": "acme"}
    assert admin_client.post(page("limit", "change", limit.pk), data).status_code == 302
    assert LimitIncrease.objects.get().tenant == ""


def test_what_is_used_is_shown_of_the_raised_amount(admin_client):
    limit = Limit.objects.create(tenant="acme", amount=10_000)
    settled()
    until = timezone.now() + dt.timedelta(hours=1)
    LimitIncrease.objects.create(limit=limit, amount=10_000, until=until)
    LimitIncrease.objects.create(limit=limit, amount=99_000, until=timezone.now())
    assert "$0.008383, 41%" in admin_client.get(page("limit")).text


def test_who_may_not_grant_sees_no_form_for_it(client):
    user = User.objects.create_user("editor", password="x", is_staff=True)
    allowed = Permission.objects.filter(codename__in=["view_limit", "change_limit"])
    user.user_permissions.set(allowed)
    client.force_login(user)
    limit = Limit.objects.create(tenant="*", user="*", amount=500_000)
    assert "increases-0-amount" not in client.get(page("limit", "change", limit.pk)).text
    client.post(page("limit", "change", limit.pk), increase_form())
    assert not LimitIncrease.objects.exists()


def test_levels_are_written_and_shown_as_percentages(admin_client):
    levels = {"notify_at": "100, 50 %;80", "degrade_at": "80", "hard_stop_percent": "110"}
    assert admin_client.post(page("limit", "add"), limit_form(**levels)).status_code == 302
    limit = Limit.objects.get()
    assert (limit.notify_at, limit.degrade_at, limit.hard_stop_percent) == ([50, 80, 100], 80, 110)
    form = admin_client.get(page("limit", "change", limit.pk)).text
    assert 'value="50, 80, 100"' in form
    assert 'value="110"' in form


def test_levels_left_empty_mean_never_and_the_amount_itself(admin_client):
    empty = {"notify_at": "", "degrade_at": "", "hard_stop_percent": ""}
    assert admin_client.post(page("limit", "add"), limit_form(**empty)).status_code == 302
    limit = Limit.objects.get()
    assert (limit.notify_at, limit.degrade_at, limit.hard_stop_percent) == ([], None, 100)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"notify_at": "70, ninety"}, "Write whole percentages from 1 to 120, such as 70, 90, 100"),
        ({"notify_at": "[70, 90]"}, "Write whole percentages from 1 to 120"),
        ({"notify_at": "0"}, "Write whole percentages from 1 to 120"),
        ({"notify_at": "121"}, "Write whole percentages from 1 to 120"),
        ({"degrade_at": "0"}, "1 to 120 percent, or nothing for never."),
        ({"degrade_at": "121"}, "1 to 120 percent, or nothing for never."),
        ({"hard_stop_percent": "99"}, "100 to 120 percent."),
        ({"hard_stop_percent": "121"}, "100 to 120 percent."),
    ],
)
def test_what_is_no_level_is_said_in_words(admin_client, given, text):
    answer = admin_client.post(page("limit", "add"), limit_form(**given))
    assert answer.status_code == 200
    assert text in answer.text
    assert not Limit.objects.exists()


def test_who_may_only_look_reads_the_levels_in_words(client):
    Limit.objects.create(amount=1, notify_at=[50, 100], degrade_at=None, hard_stop_percent=105)
    Limit.objects.create(amount=1, unit="calls", notify_at=[], degrade_at=80)
    looking = User.objects.create_user("looking", is_staff=True)
    looking.user_permissions.add(Permission.objects.get(codename="view_limit"))
    client.force_login(looking)
    texts = {
        row.unit: client.get(page("limit", "change", row.pk)).text for row in Limit.objects.all()
    }
    assert "tells at 50, 100 %; stops at 105 %" in texts["cost"]
    assert "tells nobody; degrades at 80 %; stops at 100 %" in texts["calls"]


def test_c91_each_change_is_written_down_with_who_and_why(admin_client):
    admin_client.post(page("limit", "add"), limit_form())
    limit = Limit.objects.get()
    changed = limit_form(amount="0.70", mode="observe", reason="a launch")
    assert admin_client.post(page("limit", "change", limit.pk), changed).status_code == 302
    admin_client.post(page("limit", "change", limit.pk), changed)  # changes nothing
    second, first = LimitRevision.objects.all()
    assert (first.before, first.after["amount"], first.reason) == ({}, 500_000, "as agreed")
    assert second.before == {"amount": 500_000, "mode": ""}
    assert second.after == {"amount": 700_000, "mode": "observe"}
    assert (second.by, second.source, second.reason) == ("admin", "admin", "a launch")
    shown = admin_client.get(page("limit", "change", limit.pk)).text
    assert "by admin (admin): a launch. amount $0.50 → $0.70; mode — → observe" in shown


def test_c91_an_attempt_that_is_refused_is_written_down(client, admin_client):
    limit = Limit.objects.create(tenant="*", user="*", amount=500_000)
    somebody = User.objects.create_user("bo", password="secret", is_staff=True)
    somebody.user_permissions.set(Permission.objects.filter(codename="view_limit"))
    client.force_login(somebody)
    for name, arguments in (("add", []), ("change", [limit.pk]), ("delete", [limit.pk])):
        answer = client.post(page("limit", name, *arguments), limit_form(amount="9"))
        assert answer.status_code == 403
        assert client.get(page("limit", "change", limit.pk)).status_code == 200
    rows = LimitRevision.objects.order_by("id").values_list("limit_id", "by", "source")
    assert list(rows) == [(0, "bo", "admin"), *[(limit.pk, "bo", "admin")] * 2]
    assert (
        "by bo (admin). Tried, and refused."
        in admin_client.get(page("limit", "change", limit.pk)).text
    )
    limit.refresh_from_db()
    assert limit.amount == 500_000


def test_a_change_needs_a_reason_and_looking_again_does_not(admin_client):
    limit = Limit.objects.create(tenant="*", user="*", amount=500_000)
    answer = admin_client.post(
        page("limit", "change", limit.pk), limit_form(amount="9", reason=" ")
    )
    assert "Say why: it stays in the history." in answer.text
    limit.refresh_from_db()
    assert limit.amount == 500_000
    assert not LimitRevision.objects.exists()
    levels = {"notify_at": "70, 90, 100", "degrade_at": "90", "hard_stop_percent": "100"}
    same = limit_form(reason="", **levels)
    assert admin_client.post(page("limit", "change", limit.pk), same).status_code == 302


def test_what_was_deleted_stays_in_the_history(admin_client):
    limit = Limit.objects.create(tenant="acme", amount=500_000)
    admin_client.post(page("limit", "delete", limit.pk), {"post": "yes"})
    other = Limit.objects.create(tenant="globex", amount=1)
    admin_client.post(
        page("limit"),
        {"action": "delete_selected", "_selected_action": [other.pk], "post": "yes"},
    )
    assert not Limit.objects.exists()
    removed = LimitRevision.objects.values_list("scope", "by", "after").order_by("id")
    assert list(removed) == [("tenant acme", "admin", {}), ("tenant globex", "admin", {})]


def test_a_new_limit_tells_at_the_usual_levels_unless_they_are_changed(admin_client):
    form = admin_client.get(page("limit", "add")).context["adminform"].form
    assert 'value="70, 90, 100"' in str(form["notify_at"])


def test_c91_staff_of_some_tenants_touch_only_limits_that_name_one_of_theirs(
    admin_client, settings
):
    settings.TOKEN_ALLOWANCE = {"STAFF_TENANT_FILTER": lambda user: ["acme"]}
    rows = {t: Limit.objects.create(tenant=t, amount=1) for t in ("acme", "globex", "*", "")}
    LimitRevision.note(rows["*"], {}, by="eva", source="admin", reason="globex asked")
    shown = admin_client.get(page("limit", "change", rows["*"].pk))
    assert shown.status_code == 200
    assert "globex" not in shown.text
    listed = admin_client.get(page("limit")).text
    assert "tenant acme" in listed
    assert "globex" not in listed
    for tenant, status in (("acme", 302), ("globex", 302), ("", 302), ("*", 403)):
        choice = {"tenant_0": "only", "tenant_1": "acme", "user_0": "together"}
        address = page("limit", "change", rows[tenant].pk)
        answer = admin_client.post(address, limit_form(amount="7", window="week", **choice))
        assert answer.status_code == status
        admin_client.post(page("limit", "delete", rows[tenant].pk), {"post": "yes"})
    assert set(Limit.objects.values_list("tenant", "amount")) == {("globex", 1), ("*", 1), ("", 1)}
    for words in (("only", "globex"), ("each", ""), ("together", "")):
        given = limit_form(tenant_0=words[0], tenant_1=words[1], window="month")
        answer = admin_client.post(page("limit", "add"), given)
        assert "Name one of the tenants that you look after." in answer.text
    assert Limit.objects.count() == 3
