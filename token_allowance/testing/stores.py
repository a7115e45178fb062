"""A store in memory in place of the configured one."""

from __future__ import annotations

import threading
from typing import Any

from django.conf import settings as django_settings
from django.test import override_settings
from django.test.utils import TestContextDecorator

from token_allowance import conf, threads
from token_allowance.stores.memory import MemoryStore

QUIET_SECONDS = 5.0


class memory_store(TestContextDecorator):
    """Count in a fresh MemoryStore: ``with memory_store() as store``, or over a test or a TestCase.

    Over a TestCase each test has a store of its own. Limits and prices are still rows of the
    database; the ledger is ``store.rows``. ``settings`` are further keys of TOKEN_ALLOWANCE.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings
        self._entered: list[override_settings] = []

    def __enter__(self) -> MemoryStore:  # type: ignore[override]
        return self.enable()

    def enable(self) -> MemoryStore:
        store = MemoryStore()

        def backend() -> MemoryStore:
            return store  # also after other settings have changed

        given = {**getattr(django_settings, conf.NAME, {}), **self.settings}
        override = override_settings(**{conf.NAME: {**given, "STORE": {"BACKEND": backend}}})
        override.enable()
        self._entered.append(override)
        return store

    def disable(self) -> None:
        try:
            _finish_background_work()
        finally:
            self._entered.pop().disable()


def _finish_background_work() -> None:
    """What was left to the background, such as a dropped stream, belongs to this store."""
    done = threading.Event()
    threads.later(done.set)
    done.wait(QUIET_SECONDS)
