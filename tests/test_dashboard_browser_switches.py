"""Stopping in a real browser: by keyboard, without JavaScript, on a phone, in the dark."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from tests import dashboards
from token_allowance import allowance
from token_allowance.models import Drill, HourlySpend, Refusal, Reservation, Switch, SwitchEvent

MOST_KEYS = 12
AGENT = {"feature": "agent", "tenant": "acme"}


@pytest.fixture
def base(transactional_db, live_server, settings):
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.dashboards.StrictPolicy"]
    dashboards.owner()
    now = timezone.now()
    Reservation.objects.bulk_create(
        dashboards.call(now - dt.timedelta(seconds=10 * n), feature="agent", model="gpt-5-mini")
        for n in range(1, 9)
    )
    return live_server.url


class Keys:
    """A keyboard that counts; a chord such as Shift+Tab is one press."""

    def __init__(self, page):
        self.page = page
        self.pressed = 0

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
            self.pressed += 1


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_a_runaway_is_stopped_within_twelve_keys(browser, base, script):
    context = browser.new_context(java_script_enabled=script)
    page = context.new_page()
    dashboards.sign_in(page, base)
    page.goto(f"{base}/allowance/now/")
    keys = Keys(page)
    keys.press("Tab", "Enter")  # over the header
    keys.press("Tab", "Enter")  # over the tabs and filters
    keys.press("Tab")
    expect(page.get_by_role("link", name="Stop… agent")).to_be_focused()
    keys.press("Enter")
    expect(page.get_by_role("textbox", name="Why")).to_be_focused()
    keys.press(*"loop", "Enter")
    expect(page.get_by_role("heading", level=1, name="stopped")).to_be_visible()
    assert keys.pressed <= MOST_KEYS
    switch = Switch.objects.get()
    assert str(switch) == "tenant acme, feature agent, model gpt-5-mini"
    assert (switch.by, switch.reason) == ("ana", "loop")
    assert SwitchEvent.objects.get().action == "engaged"

    page.get_by_role("link", name="Resume…").click()
    page.get_by_role("textbox", name="Why it may go on").fill("fixed")
    page.get_by_role("button", name="Resume feature agent").click()
    expect(page.get_by_role("heading", level=1, name="not stopped any more")).to_be_visible()
    switch.refresh_from_db()
    assert switch.released_at is not None
    context.close()


def test_two_clicks_on_stop_are_one_stop(page, base):
    dashboards.sign_in(page, base)
    page.goto(f"{base}/allowance/switches/stop/?feature=agent&tenant=acme")
    page.get_by_role("textbox", name="Why").fill("loop")
    page.get_by_role("button", name="Stop feature agent").dblclick()
    expect(page.get_by_role("heading", level=1, name="stopped")).to_be_visible()
    assert SwitchEvent.objects.count() == 1


def test_a_status_page_follows_until_it_is_over(page, base):
    allowance.engage(**AGENT, reason="loop", by="bo")
    switch = Switch.objects.get()
    dashboards.sign_in(page, base)
    page.goto(f"{base}/allowance/switches/{switch.pk}/")
    said = page.get_by_role("status")
    expect(said).to_have_text("Stopped; 0 in flight.")
    at = switch.engaged_at + dt.timedelta(milliseconds=940)
    Refusal.objects.create(
        starts_at=at.replace(second=0, microsecond=0), code="switch_engaged",
        key="tenant=acme,feature=agent", **AGENT, calls=41, first_at=at, last_at=at,
    )  # fmt: skip
    expect(said).to_have_text("Stopped; first refusal after 0.94 s; 0 in flight.")
    allowance.disengage(**AGENT, by="bo", reason="fixed")
    expect(said).to_have_text("Not stopped any more.")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2_500)
    assert asked == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", dashboards.WIDTHS.values(), ids=dashboards.WIDTHS)
def test_every_page_is_accessible_under_the_strict_policy(page, base, settings, scheme, width):
    settings.TOKEN_ALLOWANCE = {"ENVIRONMENT": "production"}
    now = timezone.now()
    HourlySpend.objects.create(starts_at=now - dt.timedelta(days=1), **AGENT)
    Drill.objects.create(
        **AGENT, processes=4, by="ana", started_at=now - dt.timedelta(days=40), slo_ms=5_000,
        effect_ms=412, callers=40, attempts=41, codes={"switch_engaged": 40}, passed=False,
        error="40 refused calls were tried 41 times: retries",
    )  # fmt: skip
    allowance.engage(feature="digest", reason="old", by="bo")
    allowance.disengage(feature="digest", by="bo")
    allowance.engage(model="m", percent=40, reason="a longer reason than others " * 6, by="bo")
    allowance.engage(**AGENT, reason="loop", by="bo", minutes=30)
    last = Switch.objects.latest("id")
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    dashboards.sign_in(page, base)
    found = {}
    for path in ("", "?q=age", "stop/", "stop/?feature=agent&tenant=acme", "stop/?everything=1",
                 "drills/", f"{last.pk}/", f"{last.pk}/resume/"):  # fmt: skip
        page.goto(f"{base}/allowance/switches/{path}")
        found[path] = dashboards.violations(page)
        if dashboards.scrolls_sideways(page):
            found[path].append("it scrolls sideways")
    assert {path: bad for path, bad in found.items() if bad} == {}


def test_the_last_resort_asks_for_its_phrase(page, base, settings):
    settings.TOKEN_ALLOWANCE = {"ENVIRONMENT": "production"}
    dashboards.sign_in(page, base)
    page.goto(f"{base}/allowance/switches/")
    page.get_by_role("link", name="Stop everything…").click()
    page.get_by_role("textbox", name="Why").fill("leaked key")
    page.get_by_role("textbox", name="Type “stop production”").fill("stop")
    page.get_by_role("button", name="Stop everything").click()
    expect(page.get_by_text("to stop every call.")).to_be_visible()
    assert not Switch.objects.exists()
    expect(page.get_by_role("textbox", name="Why")).to_have_value("leaked key")
    page.get_by_role("textbox", name="Type “stop production”").fill("stop production")
    page.get_by_role("button", name="Stop everything").click()
    expect(page.get_by_role("heading", level=1, name="everything: stopped")).to_be_visible()
    with pytest.raises(allowance.SwitchEngaged):
        allowance.admit(tenant="globex", feature="chat")
