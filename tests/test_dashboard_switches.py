"""Stopping and resuming on the dashboard: asked first, done once, with who and why."""

from __future__ import annotations

import csv
import datetime as dt
import io
from urllib.parse import urlencode

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests import dashboards
from token_allowance import allowance
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import Drill, HourlySpend, Refusal, Reservation, Switch, SwitchEvent
from token_allowance_dashboard.screens import drills, stops

LIST = "/allowance/switches/"
STOP = "/allowance/switches/stop/"
DRILLS = "/allowance/switches/drills/"
AGENT = {"feature": "agent", "tenant": "acme"}
HOSTILE = "<script>alert(1)</script>"
SECOND = dt.timedelta(seconds=1)

pytestmark = pytest.mark.django_db


@pytest.fixture
def ana(client):
    client.force_login(dashboards.owner())
    return client


def text(answer):
    return " ".join(answer.content.decode().split())


def stop(client, query, **fields):
    data = {"reason": "runaway loop", "minutes": "30"} | fields
    return client.post(f"{STOP}?{urlencode(query)}", data, follow=True)


def engaged(**target):
    allowance.engage(**{"reason": "runaway loop", "by": "bo"} | target)
    return Switch.objects.latest("id")


def refusals(switch, key, *, calls, after=1.0):
    first = switch.engaged_at + dt.timedelta(seconds=after)
    return Refusal.objects.create(
        starts_at=first.replace(second=0, microsecond=0), code="switch_engaged", key=key,
        tenant=switch.tenant, feature=switch.feature, user=f"after {after}", calls=calls,
        first_at=first, last_at=first,
    )  # fmt: skip


def test_the_page_says_what_would_be_hit_and_does_nothing(ana, settings):
    settings.TOKEN_ALLOWANCE = {"ENVIRONMENT": "production"}
    now = timezone.now()
    ago = dt.timedelta(minutes=2)
    rows = [dashboards.call(now - ago, feature="agent", user=f"u{n}") for n in range(6)]
    rows += [
        dashboards.call(
            now - ago, feature="agent", state="reserved", settled_at=None, cost_micros=None,
            cost_exact=None, reserved_micros=40_000,
        )
        for _ in range(9)
    ]  # fmt: skip
    rows.append(dashboards.call(now - ago, feature="chat"))
    Reservation.objects.bulk_create(rows)
    said = text(ana.get(STOP, AGENT))
    assert "feature agent, tenant acme</strong> in <strong>production" in said
    assert "9 calls in flight will finish and be charged (about $0.36)" in said
    assert "503, code <code>switch_engaged" in said
    assert ana.get(STOP, AGENT).context["blast"]["calls"] == 15
    assert not Switch.objects.exists()


def test_a_post_stops_with_who_why_and_an_end_and_shows_how_it_stands(ana):
    page = stop(ana, AGENT, cut_streams="on")
    switch = Switch.objects.get()
    assert page.redirect_chain == [(f"/allowance/switches/{switch.pk}/", 302)]
    assert (switch.tenant, switch.feature, switch.user, switch.model) == ("acme", "agent", "", "")
    assert (switch.by, switch.reason, switch.cuts_streams) == ("ana", "runaway loop", True)
    assert switch.ends_at - switch.engaged_at == pytest.approx(
        dt.timedelta(minutes=30), abs=dt.timedelta(seconds=5)
    )
    event = SwitchEvent.objects.get()
    assert (event.action, event.by, event.reason) == ("engaged", "ana", "runaway loop")
    assert event.source == "dashboard"
    assert "Stopped: feature agent, tenant acme." in text(page)


def test_only_by_hand_has_no_end(ana):
    stop(ana, AGENT, minutes="")
    assert Switch.objects.get().ends_at is None


def test_a_stop_needs_a_reason_and_a_known_end(ana):
    for fields in ({"reason": "  "}, {"minutes": "99999"}, {"reason": "x" * 501}):
        assert stop(ana, AGENT, **fields).status_code == 200
    assert not Switch.objects.exists()


def test_sent_twice_it_is_one_stop(ana):
    stop(ana, AGENT)
    stop(ana, AGENT)
    assert Switch.objects.count() == 1
    assert SwitchEvent.objects.count() == 1


def test_sent_twice_at_the_same_moment_it_is_one_stop(ana, monkeypatch):
    """The second one looks before the first one has stopped, and acts after it."""
    looked = stops._running
    first = [None]
    monkeypatch.setattr(stops, "_running", lambda chosen: first.pop() if first else looked(chosen))
    engaged(**AGENT, by="ana", minutes=30)
    stop(ana, AGENT)
    assert SwitchEvent.objects.count() == 1


def test_what_stands_already_is_replaced_also_a_part_of_it(ana):
    switch = engaged(**AGENT, percent=1, reason="drill 7, ends by itself")
    assert "Stopped already by bo" in text(ana.get(STOP, AGENT))
    stop(ana, AGENT)
    switch.refresh_from_db()
    assert (switch.percent, switch.by, switch.reason) == (100, "ana", "runaway loop")
    assert SwitchEvent.objects.count() == 2


def test_what_was_let_through_in_part_is_stopped_again_whole(ana):
    switch = engaged(**AGENT, by="ana", minutes=30, percent=90)
    stop(ana, AGENT)
    switch.refresh_from_db()
    assert switch.percent == 100


def test_everything_needs_its_phrase(ana, settings):
    settings.TOKEN_ALLOWANCE = {"ENVIRONMENT": "production"}
    query = {"everything": "1"}
    assert "Type “stop production”" in text(ana.get(STOP, query))
    stop(ana, query)
    stop(ana, query, phrase="stop everything")
    assert not Switch.objects.exists()
    stop(ana, query, phrase=" Stop  production ")
    assert str(Switch.objects.get()) == "everything"


def test_everything_without_an_environment(ana):
    stop(ana, {"everything": "1"}, phrase="stop everything")
    assert Switch.objects.count() == 1


@pytest.mark.parametrize(
    ("permissions", "query", "may"),
    [
        (["flip_switch"], AGENT, True),
        (["flip_switch"], {"everything": "1"}, False),
        (["flip_global_switch"], {"everything": "1"}, True),
        (["flip_global_switch"], AGENT, False),
        (["change_switch"], AGENT, False),
    ],
)
def test_who_may_stop_what(client, permissions, query, may):
    client.force_login(dashboards.person("bo", "view_dashboard", *permissions))
    answer = stop(client, query, phrase="stop everything")
    assert answer.status_code == (200 if may else 403)
    assert Switch.objects.exists() is may


def test_who_may_not_is_told_why_and_never_sees_the_global_stop(client):
    switch = engaged(**AGENT)
    client.force_login(dashboards.person("bo", "view_dashboard"))
    for url in (LIST, f"{LIST}{switch.pk}/"):
        said = text(client.get(url))
        assert "Stopping and resuming needs the permission" in said
        assert "Stop everything" not in said


def test_staff_of_some_tenants_stop_only_theirs(client, settings):
    settings.TOKEN_ALLOWANCE = {"STAFF_TENANT_FILTER": lambda user: ["acme"]}
    own, foreign = engaged(**AGENT), engaged(tenant="globex")
    wide = engaged(feature="chat")
    client.force_login(dashboards.owner())
    said = client.get(LIST)
    assert [line.switch for line in said.context["lines"]] == [own]
    assert said.context["engaged"] == 1
    assert "globex" not in text(said)
    for other in (foreign, wide):
        for page in ("", "live/", "resume/"):
            assert client.get(f"{LIST}{other.pk}/{page}").status_code == 404
        assert client.post(f"{LIST}{other.pk}/resume/", {"reason": "x"}).status_code == 404
    assert stop(client, {"tenant": "initech"}).status_code == 404
    assert stop(client, {"everything": "1"}, phrase="stop everything").status_code == 404
    assert "You may stop calls of your tenants" in text(stop(client, {"feature": "agent"}))
    assert Switch.objects.count() == 3
    stop(client, {"tenant": "acme"})
    assert Switch.objects.count() == 4


def test_what_names_no_calls_asks_which(ana):
    assert "Which calls?" in text(ana.get(STOP))
    for query in ("feature=%00", f"feature={'x' * 300}", "feature=a&everything=1", "color=red"):
        answer = ana.get(f"{STOP}?{query}")
        assert answer.status_code == 200
        assert "Which calls?" in text(answer)


def test_a_dead_database_stops_nothing_and_says_so(ana, monkeypatch):
    def dead(*args, **options):
        raise StoreUnavailable("down")

    monkeypatch.setattr(stops, "engage", dead)
    answer = stop(ana, AGENT)
    assert answer.status_code == 503
    assert "Nothing was stopped" in text(answer)
    assert 'value="runaway loop"' in text(answer)


def test_words_of_others_are_text(ana):
    switch = engaged(feature=HOSTILE, reason=HOSTILE)
    for url in (LIST, f"{LIST}?q={HOSTILE}", f"{LIST}{switch.pk}/", f"{LIST}{switch.pk}/resume/"):
        said = text(ana.get(url))
        assert HOSTILE not in said
        assert "&lt;script&gt;" in said
    assert HOSTILE not in text(ana.get(STOP, {"feature": HOSTILE}))


def test_resume_shows_why_and_what_waits_and_lets_through(ana):
    switch = engaged(**AGENT)
    other = engaged(model="gpt-5-mini", reason="dear")
    refusals(switch, "tenant=acme,feature=agent", calls=40)
    url = f"{LIST}{switch.pk}/resume/"
    page = ana.get(url)
    assert page.context["measured"].refused == 40
    assert "runaway loop" in text(page)
    assert f"{other.reason}" in text(page)
    ana.post(url, {"part": "all", "reason": "fixed", "stopped_for": switch.reason})
    switch.refresh_from_db()
    assert switch.released_at is not None
    event = SwitchEvent.objects.latest("id")
    assert (event.action, event.by, event.reason) == ("released", "ana", "fixed")
    assert event.source == "dashboard"
    again = ana.post(url, {"part": "all", "reason": "fixed"}, follow=True)
    assert "not stopped any more" in text(again)
    assert SwitchEvent.objects.filter(switch=switch).count() == 2


def test_resume_needs_a_reason_and_its_permission(ana, client):
    switch = engaged(everything=True)
    url = f"{LIST}{switch.pk}/resume/"
    ana.post(url, {"part": "all", "reason": " ", "stopped_for": switch.reason})
    client.force_login(dashboards.person("bo", "view_dashboard", "flip_switch"))
    assert client.get(url).status_code == 403
    assert client.post(url, {"reason": "x", "stopped_for": switch.reason}).status_code == 403
    switch.refresh_from_db()
    assert switch.released_at is None


def test_ten_percent_are_let_through_first(ana):
    switch = engaged(**AGENT, minutes=20, cut_streams=True)
    url = f"{LIST}{switch.pk}/resume/"
    ana.post(url, {"part": "some", "reason": "try", "stopped_for": switch.reason})
    ends_at = switch.ends_at
    switch.refresh_from_db()
    assert (switch.percent, switch.released_at, switch.cuts_streams) == (90, None, True)
    assert abs(switch.ends_at - ends_at) < dt.timedelta(seconds=5)
    assert "10 % of the callers first" not in text(ana.get(url))
    ana.post(url, {"reason": "well", "stopped_for": switch.reason})
    switch.refresh_from_db()
    assert switch.released_at is not None


def test_a_stop_that_somebody_has_ordered_meanwhile_is_not_undone(ana):
    switch = engaged(**AGENT)
    seen = switch.reason
    allowance.engage(**AGENT, reason="a leak of data", by="cy")
    url = f"{LIST}{switch.pk}/resume/"
    page = ana.post(url, {"part": "all", "reason": "fixed", "stopped_for": seen})
    assert "stopped anew meanwhile" in text(page)
    assert 'name="stopped_for" value="a leak of data"' in text(page)
    switch.refresh_from_db()
    assert switch.released_at is None


def test_how_it_stands_is_measured_by_refusals_and_the_ledger(ana):
    switch = engaged(**AGENT)
    at = switch.engaged_at
    rows = [
        dashboards.call(at - dt.timedelta(seconds=5), feature="agent", settled_at=at + 3 * SECOND),
        dashboards.call(at - dt.timedelta(seconds=60), feature="agent", settled_at=at - SECOND),
        dashboards.call(at + 0.3 * SECOND, feature="agent"),
        dashboards.call(at + 9 * SECOND, feature="chat"),
        dashboards.call(
            at - SECOND, feature="agent", state="reserved", settled_at=None, cost_micros=None,
            cost_exact=None, reserved_micros=50_000,
        ),
    ]  # fmt: skip
    Reservation.objects.bulk_create(rows)
    refusals(switch, "tenant=acme,feature=agent", calls=7, after=0.9)
    refusals(switch, "feature=agent", calls=99, after=0.1)
    before = refusals(switch, "tenant=acme,feature=agent", calls=0, after=-1)
    Refusal.objects.filter(pk=before.pk).update(last_at=at + SECOND)  # of the stop before this one
    page = ana.get(f"{LIST}{switch.pk}/live/")
    found = page.context["measured"]
    assert found.first_refusal == 0.9 * SECOND
    assert (found.refused, found.in_flight_then, found.in_flight) == (7, 2, 1)
    assert "+0.90 s" in text(page)
    assert "<html" not in text(page)


def test_the_last_call_that_was_admitted_after_it_is_told(ana):
    switch = engaged(**AGENT)
    past = timezone.now() - dt.timedelta(minutes=5)
    Switch.objects.filter(pk=switch.pk).update(engaged_at=past)
    dashboards.call(past + 0.3 * SECOND, feature="agent").save()
    said = text(ana.get(f"{LIST}{switch.pk}/"))
    assert "+0.30 s" in said
    Switch.objects.filter(pk=switch.pk).update(percent=90)
    page = ana.get(f"{LIST}{switch.pk}/")
    assert page.context["measured"].last_admission is None
    assert "not measured: others are admitted" in text(page)


def test_when_it_is_over_the_page_asks_no_more(ana):
    switch = engaged(**AGENT)
    assert ana.get(f"{LIST}{switch.pk}/live/").status_code == 200
    assert "every 2s" in text(ana.get(f"{LIST}{switch.pk}/"))
    Switch.objects.filter(pk=switch.pk).update(ends_at=timezone.now())
    assert ana.get(f"{LIST}{switch.pk}/live/").status_code == 286
    said = text(ana.get(f"{LIST}{switch.pk}/"))
    assert "every 2s" not in said
    assert "Not stopped any more" in said


def test_the_list_has_engaged_ones_first_with_what_they_refused(ana):
    old = engaged(feature="digest")
    refusals(old, "feature=digest", calls=3, after=0)
    allowance.disengage(feature="digest", by="bo")
    first = engaged(**AGENT)
    refusals(first, "tenant=acme,feature=agent", calls=12)
    second = engaged(everything=True)
    Drill.objects.create(
        tenant="acme", feature="agent", processes=4, by="ana", slo_ms=5000, passed=True
    )
    lines = ana.get(LIST).context["lines"]
    assert [line.switch for line in lines] == [second, first, old]
    assert [line.refused for line in lines] == [0, 12, 3]
    assert [line.is_running for line in lines] == [True, True, False]
    assert [line.drill is not None for line in lines] == [False, True, False]


def test_a_switch_without_calls_is_found_and_made_on_the_fly(ana):
    HourlySpend.objects.create(starts_at=timezone.now() - dt.timedelta(days=1), feature="agents-2")
    found = [dict(one.parts) for one in ana.get(LIST, {"q": "agent"}).context["found"]]
    assert found[0] == {"feature": "agents-2"}
    assert {"tenant": "agent"} in found


def test_the_search_of_some_tenants_finds_only_theirs(client, settings):
    settings.TOKEN_ALLOWANCE = {"STAFF_TENANT_FILTER": lambda user: ["acme"]}
    at = timezone.now() - dt.timedelta(days=1)
    for tenant in ("acme", "globex"):
        HourlySpend.objects.create(starts_at=at, feature="agent", tenant=tenant)
    client.force_login(dashboards.owner())
    found = [dict(one.parts) for one in client.get(LIST, {"q": "agent"}).context["found"]]
    assert found == [{"feature": "agent", "tenant": "acme"}]


@pytest.mark.parametrize("query", ["q=%00", "q=%25", f"q={'x' * 500}"])
def test_nonsense_in_the_address_is_no_error(ana, query):
    assert ana.get(f"{LIST}?{query}").status_code == 200
    assert ana.get(f"{LIST}99999999999999999999/").status_code == 404


def test_the_history_as_csv_needs_its_permission(ana, client):
    switch = engaged(**AGENT, reason="=1+1")
    answer = ana.get(f"{LIST}{switch.pk}/", {"format": "csv"})
    lines = list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))
    assert [(line["action"], line["by"], line["reason"]) for line in lines] == [
        ("engaged", "bo", "'=1+1")
    ]
    client.force_login(dashboards.person("bo", "view_dashboard"))
    assert client.get(f"{LIST}{switch.pk}/", {"format": "csv"}).status_code == 403


def test_the_history_says_from_where_each_order_came(ana):
    call_command("allowance", "stop", *["--feature", "agent", "--reason", "loop"])
    call_command("allowance", "resume", "--feature", "agent")
    switch = Switch.objects.get()
    allowance.engage(feature="agent", reason="again", by="rule")
    assert list(switch.events.values_list("source", flat=True)) == ["command", "command"]
    assert SwitchEvent.objects.latest("id").source == "code"
    assert text(ana.get(f"{LIST}{switch.pk}/")).count(">command<") == 2


def test_the_number_of_queries_does_not_grow(ana):
    def queries():
        with CaptureQueriesContext(connection) as made:
            ana.get(LIST)
        return len(made)

    engaged(**AGENT)
    queries()
    few = queries()
    for number in range(20):
        engaged(feature=f"f{number}")
    queries()
    assert queries() == few < 20


def test_drills_show_their_figures_and_what_to_type(ana):
    said = text(ana.get(DRILLS))
    assert "never drilled" in said
    assert "python manage.py allowance drill --tenant KEY" in said
    now = timezone.now()
    for number, passed in enumerate((True, False)):
        Drill.objects.create(
            tenant="acme", processes=4, by="ana", slo_ms=5_000, effect_ms=12 + number,
            started_at=now - dt.timedelta(days=40 + number), passed=passed, callers=40,
            attempts=80, codes={"switch_engaged": 40}, error="" if passed else "retries",
        )  # fmt: skip
    page = ana.get(DRILLS)
    said = text(page)
    assert page.context["finding"][0] == "warning"
    assert "more than 30 days ago" in said
    assert "failed</span>: retries" in said
    assert page.context["slowest"] == 13


def test_drills_of_others_are_not_shown(client, settings):
    settings.TOKEN_ALLOWANCE = {"STAFF_TENANT_FILTER": lambda user: ["acme"]}
    for tenant in ("acme", "globex", ""):
        Drill.objects.create(
            tenant=tenant, feature="chat", processes=4, by="x", slo_ms=5000, passed=False
        )
    client.force_login(dashboards.owner())
    page = client.get(DRILLS)
    assert [drill.tenant for drill in page.context["rows"]] == ["acme"]
    assert "globex" not in text(page)
    assert "globex" not in text(client.get(LIST))


def test_the_slowest_of_twenty():
    assert drills.slowest([]) is None
    assert drills.slowest([7]) == 7
    assert drills.slowest(list(range(1, 21))) == 19
