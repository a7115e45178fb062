"""Fixtures that many tests share."""

from __future__ import annotations

from tests.browser import browser, page, page_errors
from tests.stores import database, databases, store

__all__ = ["browser", "database", "databases", "page", "page_errors", "store"]
