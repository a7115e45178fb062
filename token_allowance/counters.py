"""What a counter key says: the budget that it counts."""

from __future__ import annotations

import datetime as dt
from typing import Any, cast

from token_allowance import keys, rolling
from token_allowance.limits import EPOCH, RUN, Budget, Limit, Unit, cap_budget, open_budget
from token_allowance.windows import Window


def budget_of(key: str, since: int = 0, now: dt.datetime = EPOCH) -> Budget:
    """The budget a counter key names, with a limit of amount 0: what a rebuild needs to know.

    ``now`` matters where the window rolls and the key names no slice of it.
    """
    _, scope, unit, edges, start = key.split("|")
    if scope.startswith(f"{RUN}="):
        return cap_budget(scope.partition("=")[2], Unit(unit), 0, since=since)
    window, number, time_zone = edges.split("/", 2)
    rolls = window == Window.ROLLING
    values = keys.values(scope)
    limit = Limit(
        **cast(Any, values),
        unit=Unit(unit),
        window=Window(window),
        rolling_seconds=int(number) if rolls else 0,
        anchor_day=1 if rolls else int(number),
        time_zone=time_zone,
        tracked_since=since,
    )
    if start == keys.OPEN:
        return open_budget(limit, values, now)
    if rolls:
        return open_budget(limit, values, rolling.start(limit.rolling_seconds, int(start)))
    return open_budget(limit, values, keys.parsed(start))
