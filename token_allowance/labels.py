"""What a value is called: LABELS may tell the name, and a page, of what is only a key here."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.db import connection, transaction
from django.utils.functional import Promise

from token_allowance import conf

logger = logging.getLogger("token_allowance")
SCHEMES = ("", "http", "https")


@dataclass(frozen=True, slots=True)
class Label:
    text: str
    url: str = ""  # empty: no page


class Labels:
    """The names on one page: each value is asked for once. A name is shown beside its key."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Label | None] = {}
        self._failed = False

    def of(self, dimension: str, value: str) -> Label | None:
        """The name of a value, None where LABELS has none, is not set, or fails (logged once)."""
        named = conf.current().LABELS
        if named is None:
            return None
        key = (dimension, value)
        if key not in self._known:
            self._known[key] = self._asked(named, *key)
        return self._known[key]

    def _asked(self, named: Any, dimension: str, value: str) -> Label | None:
        try:
            # A query that fails inside a transaction would spoil the rest of the page.
            with transaction.atomic() if connection.in_atomic_block else nullcontext():
                return read(conf.imported(named)(dimension, value))
        except Exception:
            if not self._failed:
                logger.exception("LABELS failed for a %s; keys are shown without names", dimension)
            self._failed = True
            return None


def read(found: Any) -> Label | None:
    """What LABELS returned: text, (text, URL), or None. Raises TypeError for anything else."""
    text, url = found if isinstance(found, tuple) else (found, "")
    if text is None:
        return None
    if not isinstance(text, str | Promise) or not isinstance(url, str | Promise | None):
        raise TypeError("LABELS must return str, (str, url) or None")
    words = str(text).strip()
    return Label(words, linkable(str(url or ""))) if words else None


def linkable(url: str) -> str:
    """The address, or nothing where following it would run a script."""
    address = url.strip()
    return address if urlsplit(address).scheme in SCHEMES else ""
