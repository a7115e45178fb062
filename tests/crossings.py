"""What the processes do that cross a rung at the same moment: `tests.callers` forks them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from django.utils import timezone

from tests.callers import say
from tests.stores import spend
from token_allowance import spend as rollups
from token_allowance.alerts.evaluation import evaluate


def cross(go: str, tokens: int) -> None:
    """Spend once the file is there, look for alerts, and say how many there were."""
    _wait(go)
    spend(tokens, tenant="acme", user=f"u_{os.getpid()}")
    say(f"fired {evaluate(timezone.now())}")


def fold(go: str) -> None:
    """Make the roll-ups once the file is there."""
    _wait(go)
    rollups.fold(timezone.now())
    say("folded")


def _wait(go: str) -> None:
    say(os.getpid())
    for _ in range(60_000):
        if Path(go).exists():
            return
        time.sleep(0.001)
    raise TimeoutError("nobody has said go")
