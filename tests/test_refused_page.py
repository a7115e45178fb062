"""The page for people, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import override_settings

from tests.urls_http import raised, spent


@pytest.fixture(autouse=True)
def urls() -> Iterator[None]:
    middleware = ["tests.urls_http.strict", *settings.MIDDLEWARE]
    with override_settings(ROOT_URLCONF="tests.urls_http", MIDDLEWARE=middleware):
        yield
    raised.clear()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_styled_under_a_strict_policy_and_fits_a_phone(
    live_server, page, page_errors, scheme
):
    page.set_viewport_size({"width": 360, "height": 640})
    page.emulate_media(color_scheme=scheme)
    raised.append(spent(trace_id="r" * 200))
    answer = page.goto(f"{live_server.url}/refuse/")
    assert answer.status == 429
    assert page.get_by_role("heading", level=1).inner_text() == "You have used today’s AI allowance"
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    background = page.evaluate("getComputedStyle(document.querySelector('.again')).backgroundColor")
    assert background == {"light": "rgb(238, 245, 250)", "dark": "rgb(20, 36, 47)"}[scheme]
    assert [text for text in page_errors if "429" not in text] == []
    page_errors.clear()
