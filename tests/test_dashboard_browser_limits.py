"""Limits and tenants in a browser: a limit is looked at, changed and saved; a tenant gets more."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from tests import dashboards
from token_allowance.models import DegradeRule, Limit, LimitIncrease, LimitRevision, Tenant

DOLLAR = 1_000_000
STILL = "document.getAnimations().every(a => a.playState !== 'running')"  # colours fade


@pytest.fixture
def ana(transactional_db, settings, live_server, page):
    """A month of spending of three tenants, under some limits; signed in under the policy."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.dashboards.StrictPolicy"]
    now = timezone.now()
    spent = dashboards.history(now, days=25)
    Tenant.objects.create(key="acme", name="Acme Corporation", plan="pro")
    DegradeRule.objects.create(from_model="claude-sonnet-5", to_model="claude-haiku-5")
    Limit.objects.create(window="month", amount=spent * 2)
    Limit.objects.create(tenant="*", window="rolling", rolling_seconds=30 * 86_400, amount=spent)
    Limit.objects.create(feature="agent", window="day", amount=DOLLAR, mode="observe")
    Limit.objects.create(tenant="*", user="*", window="month", unit="calls", amount=500)
    dashboards.owner()
    dashboards.sign_in(page, live_server.url)
    return spent


def is_good(page):
    """Under WCAG 2.2 AA, wide and narrow, light and dark."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(STILL)
        assert dashboards.violations(page) == []
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_function(STILL)
    assert dashboards.violations(page) == []
    assert not dashboards.scrolls_sideways(page)
    page.set_viewport_size({"width": 1280, "height": 800})
    page.emulate_media(color_scheme="light")


def test_a_limit_is_previewed_before_it_is_saved(page, live_server, ana):
    page.goto(f"{live_server.url}/allowance/limits/")
    expect(page.get_by_role("row")).to_have_count(1 + 4)
    is_good(page)

    page.get_by_role("link", name="New limit").click()
    is_good(page)
    for name in ("tenant", "user"):
        page.get_by_label(f"Which {name}s share a budget").select_option("together")
    page.get_by_label("Which features share a budget").select_option("only")
    page.get_by_label("The only feature").fill("chat")
    page.get_by_label("Amount").fill("0.001")
    page.get_by_role("button", name="See what it would do").click()
    expect(page.get_by_text("This field is required.")).to_be_visible()
    is_good(page)
    page.get_by_label("Reason").fill("chat costs too much")
    page.get_by_role("button", name="See what it would do").click()
    expect(page.get_by_role("heading", name="Save this limit?")).to_be_visible()
    expect(page.get_by_text("would have been reached on")).to_be_visible()
    is_good(page)
    page.get_by_role("button", name="Change it again").click()
    expect(page.get_by_label("Reason")).to_have_value("chat costs too much")
    page.get_by_label("Amount").fill("0.002")
    page.get_by_role("button", name="See what it would do").click()
    page.get_by_role("button", name="Save $0.002 per day").click()
    expect(page.get_by_text("Saved: every process obeys it")).to_be_visible()
    is_good(page)
    limit = Limit.objects.get(feature="chat")
    assert (limit.amount, limit.tenant, LimitRevision.objects.get().by) == (2_000, "", "ana")


def test_a_tenant_gets_more_for_a_while_without_javascript(browser, live_server, ana, page):
    Limit.objects.filter(window="rolling").update(amount=ana // 4)
    page.goto(f"{live_server.url}/allowance/tenants/")
    expect(page.get_by_role("row")).to_have_count(1 + 3)
    is_good(page)

    context = browser.new_context(
        java_script_enabled=False, storage_state=page.context.storage_state()
    )
    plain = context.new_page()
    plain.goto(f"{live_server.url}/allowance/tenants/")
    plain.get_by_role("link", name="acme", exact=True).click()
    expect(plain.get_by_role("heading", name="Acme Corporation (acme)")).to_be_visible()
    plain.get_by_role("link", name="Raise… ").first.click()
    plain.get_by_label("Amount").fill("5")
    plain.get_by_label("Reason").fill("a launch")
    plain.get_by_role("button", name="Look at it first").click()
    plain.get_by_role("button", name="Grant").click()
    expect(plain.get_by_text("a launch")).to_be_visible()
    context.close()
    made = LimitIncrease.objects.get()
    assert (made.tenant, made.by) == ("acme", "ana")
    assert made.until > timezone.now() + dt.timedelta(hours=23)

    page.get_by_role("link", name="acme", exact=True).click()
    is_good(page)
    page.get_by_role("link", name="Grant more for a while").click()
    is_good(page)
    page.get_by_label("Amount").fill("x")
    page.get_by_role("button", name="Look at it first").click()
    is_good(page)
    page.get_by_label("Amount").fill("7")
    page.get_by_label("Reason").fill("more")
    page.get_by_role("button", name="Look at it first").click()
    is_good(page)


def test_what_one_budget_has_used_is_taken_off(page, live_server, ana):
    limit = Limit.objects.get(window="rolling")
    page.goto(f"{live_server.url}/allowance/limits/{limit.pk}/")
    page.get_by_role("link", name="Reset… acme").click()
    is_good(page)
    page.get_by_label("Reason").fill("a broken client")
    page.get_by_role("button", name="Take off").click()
    expect(page.get_by_text("taken off. Calls in flight keep")).to_be_visible()
    is_good(page)
