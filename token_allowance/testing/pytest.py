"""A pytest plugin: ``pytest_plugins = ["token_allowance.testing.pytest"]`` in the root conftest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from token_allowance.stores.memory import MemoryStore


@pytest.fixture
def allowance_memory_store() -> Iterator[MemoryStore]:
    """A fresh MemoryStore for one test, in place of the configured store."""
    from token_allowance.testing import memory_store  # not before Django's settings are known

    with memory_store() as store:
        yield store
