"""Looking, every minute, for what the rules are about."""

from __future__ import annotations

import datetime as dt


def evaluate(now: dt.datetime) -> int:
    """Fire what the active rules find and was not told before; how many alerts that were."""
    return 0
