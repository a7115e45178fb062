"""The demo's page in a browser, from the first question to the ledger."""

from __future__ import annotations

import re

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from project.demo import seed, simulation

QUESTIONS = 8  # from the sixth on a cheaper model answers, the eighth is refused


@pytest.fixture
def provider(transactional_db):
    seed.policy()
    with simulation.running() as provider:
        yield provider


def cards(page):
    """By heading, as somebody who cannot see finds them."""
    return {
        name: page.get_by_role("region", name=name, exact=False).first
        for name in ("Chat", "Budgets of Ana", "agent run away", "Climb", "Race", "Ledger")
    }


def test_a_visitor_sees_a_budget_stop_calls(page, page_errors, live_server, provider):
    home = live_server.url + reverse("demo:index")
    page.goto(home)
    expect(page.get_by_text("Simulated provider, not real money.")).to_be_visible()

    for number in range(1, QUESTIONS):
        page.get_by_role("button", name="Ask as Ana").click()
        expect(cards(page)["Ledger"].get_by_role("row")).to_have_count(1 + number)
    expect(cards(page)["Chat"].get_by_text("counted as 9,000 output tokens")).to_be_visible()
    expect(cards(page)["Budgets of Ana"].get_by_text("nearly used up")).to_be_visible()
    expect(cards(page)["Chat"].get_by_text("so gpt-5-mini answered instead")).to_be_visible()
    assert page_errors == []

    page.get_by_role("button", name="Ask as Ana").click()
    expect(page.get_by_role("heading", name="You have used today’s AI allowance")).to_be_visible()
    expect(page.get_by_text(re.compile(r"\$0\.48\d* of \$0\.50 used"))).to_be_visible()
    assert provider.totals().received == QUESTIONS - 1
    [refused] = page_errors  # the browser reports each answer of 429
    assert "429" in refused
    page_errors.clear()

    page.get_by_role("link", name="Back to the demo").click()
    page.get_by_role("button", name="Run the agent as Ana").click()
    expect(page.get_by_text("Stopped after 5 steps to stay inside the limit.")).to_be_visible()

    page.get_by_role("button", name="Spend 40 cents, then race").click()
    race = cards(page)["Race"]
    expect(race.get_by_role("heading", name="200 OK")).to_be_visible()
    expect(race.get_by_role("heading", name="429 Too Many Requests")).to_be_visible()
    expect(race.get_by_text("user daily budget exceeded: $0.40 of $0.50 used")).to_be_visible()
    expect(race.get_by_text("$0.48")).to_be_visible()
    rows = cards(page)["Ledger"].get_by_role("row")
    expect(rows).to_have_count(1 + 7 + 5 + 6)
    expect(rows.filter(has_text="settled")).to_have_count(7 + 5 + 6)
    expect(rows.filter(has_text="degraded")).to_have_count(2 + 5)

    page.get_by_role("button", name="Let an agent climb").click()
    climb = cards(page)["Climb"]
    expect(climb.get_by_text("demo-flat-small answered instead")).to_have_count(5)
    expect(climb.get_by_text("Refused after 10 calls.")).to_be_visible()


def test_the_page_fits_a_phone_and_works_by_keyboard(page, live_server, provider):
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{live_server.url}{reverse('demo:index')}?user=cleo")
    page.get_by_role("button", name="Run the agent as Cleo").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Stopped after 5 steps")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    small = page.evaluate(
        "[...document.querySelectorAll('button, select, input:not([type=hidden]), nav a')]"
        ".filter(e => e.getBoundingClientRect().height < 40).length"
    )
    assert small == 0
