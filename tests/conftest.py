"""Fixtures that many tests share."""

from __future__ import annotations

from tests.browser import browser, page, page_errors

__all__ = ["browser", "page", "page_errors"]
