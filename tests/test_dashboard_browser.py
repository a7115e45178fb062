"""Every page in a real browser: under a strict policy, for everybody, on any screen.

With SCREENSHOTS=folder each is kept as a picture, to be looked at.
"""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest
from django.utils import timezone

from tests import dashboards
from token_allowance import allowance
from token_allowance.models import (
    Alert,
    AlertRule,
    Limit,
    Refusal,
    Reservation,
)
from token_allowance_dashboard import page as pages

pytestmark = pytest.mark.django_db(transaction=True)
MODES = [("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360)]


@pytest.fixture
def strict(settings):
    settings.MIDDLEWARE = ["tests.dashboards.StrictPolicy", *settings.MIDDLEWARE]


@pytest.fixture
def story(strict):
    """Something of everything, so that every page has what it can have."""
    now = timezone.now()
    dashboards.owner()
    Limit.objects.create(window="month", unit="cost", amount=25_000_000)
    Limit.objects.create(tenant="*", window="day", unit="cost", amount=40_000)
    dashboards.history(now, days=12, calls=200)
    rows = [dashboards.call(now - dt.timedelta(minutes=n), feature="agent") for n in range(1, 9)]
    rows.append(
        dashboards.call(
            now - dt.timedelta(minutes=2), state="reserved", settled_at=None, cost_micros=None,
            cost_exact=None, trace_id="t-1",
        )
    )  # fmt: skip
    Reservation.objects.bulk_create(rows)
    minute = now.replace(second=0, microsecond=0)
    Refusal.objects.create(
        starts_at=minute, code="exhausted", tenant="acme", feature="agent", model="gpt-5-mini",
        calls=7, first_at=now, last_at=now,
    )  # fmt: skip
    rule = AlertRule.objects.create(kind="spend_rate", name="spend rate", threshold=4)
    alert = Alert.objects.create(
        rule=rule, target="feature=agent", severity="critical", feature="agent", unit="cost",
        title="[SPIKE] agent is spending $2.12 a minute, 14x usual", value=2_120_000,
        snapshot={"top_minutes": 15, "top_spenders": [
            {"tenant": "acme", "user": "u_1", "feature": "agent", "model": "gpt-5-mini",
             "cost_micros": 31_840_000, "calls": 412, "percent": 63, "usual_calls": 29}]},
    )  # fmt: skip
    allowance.engage("feature:digest", reason="runaway loop, INC-4821", by="ana", minutes=30)
    return {"alert": alert.pk, "row": rows[0].pk}


def addresses(story):
    named = [(name, pages.address(name)) for name, _ in pages.TABS]
    named += [
        ("alert", pages.address("alert", story["alert"])),
        ("acknowledge", pages.address("alert_acknowledge", story["alert"])),
        ("mute", pages.address("alert_mute", story["alert"])),
        ("rules", pages.address("alert_rules")),
        ("reservation", pages.address("reservation", story["row"])),
    ]
    return [(name, url) for name, url in named if url]


def test_every_page_lives_under_a_strict_policy_and_is_for_everybody(
    browser, live_server, story, page_errors
):
    found = []
    for scheme, width in MODES:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
        page = context.new_page()
        page.on("console", lambda m: m.type == "error" and page_errors.append(m.text))
        page.on("pageerror", lambda error: page_errors.append(str(error)))
        dashboards.sign_in(page, live_server.url)
        page_errors.clear()  # the admin's own sign-in page is not ours
        for name, url in addresses(story):
            page.goto(live_server.url + url)
            assert page.locator("h1").count() == 1, name
            if folder := os.environ.get("SCREENSHOTS"):
                page.screenshot(path=Path(folder) / f"{name}-{scheme}-{width}.png", full_page=True)
            found += [f"{name} {scheme} {width}: {one}" for one in dashboards.violations(page)]
            if dashboards.scrolls_sideways(page):
                found.append(f"{name} {scheme} {width}: it scrolls sideways")
            found += [f"{name} {scheme} {width}: {error}" for error in page_errors]
            page_errors.clear()
        context.close()
    assert not found, "\n".join(found)
