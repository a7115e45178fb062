from __future__ import annotations

import pytest
from django.contrib.auth.models import User


@pytest.mark.django_db(transaction=True)
def test_a_page_of_the_live_server_renders(page, live_server):
    page.goto(f"{live_server.url}/admin/")
    page.get_by_label("Username").fill("ada")
    assert page.get_by_role("button", name="Log in").is_enabled()


def test_what_goes_wrong_in_a_page_is_noticed(page, page_errors):
    page.set_content("<script>console.error('first'); missing()</script>")
    page.wait_for_function("true")
    assert page_errors[0] == "first"
    assert "missing is not defined" in page_errors[1]
    page_errors.clear()


@pytest.mark.django_db
def test_the_database_is_usable_while_a_browser_is_open(browser):
    assert not User.objects.exists()
