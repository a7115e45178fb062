"""After several failures in a row a server is left alone for a while (case C58)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FAILURES = 3
OPEN_SECONDS = 1.0


class Breaker:
    """Says whether to try. While it is open, one caller per period may, and closes it again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0

    @property
    def open(self) -> bool:
        return self._failures >= FAILURES

    @property
    def doubtful(self) -> bool:
        """Has it failed a moment ago, and not answered since?"""
        return self._failures > 0 and self._clock() < self._until

    def allows(self) -> bool:
        if not self.open:
            return True
        with self._lock:
            now = self._clock()
            if now < self._until:
                return False
            self._until = now + OPEN_SECONDS
            return True

    def succeeded(self) -> None:
        if self._failures:
            self._failures = 0

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            self._until = self._clock() + OPEN_SECONDS
