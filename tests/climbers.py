"""What a process does that climbs to the level of a budget: ``tests.callers`` forks it."""

from __future__ import annotations

import json
import os
import random
from collections import Counter as Tally
from pathlib import Path

from tests.callers import say

AMOUNT, LEVEL, COST = 3000, 2700, 20


def climb(answer: str) -> None:
    """Make full plans until none is taken; what came of those, by whether the level had been
    reached before the store was asked, goes to the file ``answer``."""
    from tests.stores import budget, figures, request, reserve, spent
    from token_allowance import conf
    from token_allowance.stores.base import Outcome

    store, chance = conf.store(), random.Random(os.getpid())
    day, others = budget(amount=AMOUNT, tenant="acme"), budget("calls", 10**6, degrade_at=None)
    say(os.getpid())
    tally = Tally[str]()
    while sum(count for word, count in tally.items() if "degrade" in word) < 20:
        reached = "after" if figures(store, day)[0][0] >= LEVEL else "before"
        asked = request(day, others, cost=COST, may_degrade=True)
        outcome = reserve(store, asked).outcome
        tally[f"{reached} {outcome}"] += 1
        if outcome is Outcome.ADMITTED:
            store.settle(spent(asked, chance.randint(1, COST)))
    unfinished = Path(f"{answer}.new")
    unfinished.write_text(json.dumps(tally))
    unfinished.rename(answer)
