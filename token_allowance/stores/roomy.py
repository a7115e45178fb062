"""Counters that had room when this process last asked: a guess that saves looking before locking.

A wrong guess costs time and nothing else: what was locked is let go, and looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

MOST = 20_000


class Roomy:
    def __init__(self) -> None:
        self._keys: set[str] = set()

    def has(self, keys: Iterable[str]) -> bool:
        return self._keys.issuperset(keys)

    def keep(self, keys: Iterable[str]) -> None:
        if len(self._keys) > MOST:  # forgotten windows are among them
            self._keys.clear()
        self._keys.update(keys)

    def drop(self, keys: Iterable[str]) -> None:
        self._keys.difference_update(keys)
