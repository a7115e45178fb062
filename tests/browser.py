"""A real Chromium, driven by Playwright. An error on a page, or a missing file, fails its test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from django.db import connections
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests.capability import lacking

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",  # it refuses to run as root otherwise
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
]


def browser_path() -> str | None:
    return os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, NAMES)), None)


def errors_in(message: ConsoleMessage) -> list[str]:
    # The browser asks for an icon by itself, and the admin has none.
    wanted = not message.location["url"].endswith("/favicon.ico")
    return [message.text] if message.type == "error" and wanted else []


@pytest.fixture(scope="module")
def browser(django_db_setup: None) -> Iterator[Browser]:
    """One browser per module, not per session: while it is open an event loop runs in this thread,
    which Django takes for async code, and `asyncio.run` in a later test would refuse to start.

    Beside a running loop Django keeps connections of their own. So the test database, which has to
    be dropped by those that made it, is made before, and the others are closed at the end.
    """
    path = browser_path()
    if path is None:
        lacking("no browser: install Debian's package chromium, or set BROWSER_PATH")
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()
        connections.close_all()


@pytest.fixture
def page_errors() -> list[str]:
    """What went wrong in the page so far. A test that expects an error, say a 429, clears it."""
    return []


@pytest.fixture
def page(browser: Browser, page_errors: list[str]) -> Iterator[Page]:
    """A page in a profile of its own."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(10_000)
    page.on("console", lambda said: page_errors.extend(errors_in(said)))
    page.on("pageerror", lambda error: page_errors.append(str(error)))
    yield page
    context.close()
    if page_errors:
        pytest.fail(f"errors on the page: {page_errors}", pytrace=False)
