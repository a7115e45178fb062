"""What a process does that calls until its budget is used up: ``tests.callers`` forks it."""

from __future__ import annotations

import json
import os
from collections import Counter as Tally
from pathlib import Path

from tests.callers import say
from tests.races import PROMPT

BIG, SMALL = "race-model", "race-model-small"
CALL_TOKENS = 200  # estimated and charged: 100 in, 100 out
AMOUNT, LEVEL = 60 * CALL_TOKENS, 54 * CALL_TOKENS


def descend(answer: str, url: str) -> None:
    """Call until there is no room for ever; which model answered, by whether the level had been
    reached before the call began, goes to the file ``answer``."""
    from openai import OpenAI

    from token_allowance import allowance

    tally = Tally[str]()
    over = False
    with allowance.meter(OpenAI(api_key="any", base_url=url, max_retries=0)) as client:
        say(os.getpid())
        while not over:
            with allowance.charge_to(user="u"):
                (budget,) = allowance.remaining()
                reached = "after" if budget.used >= LEVEL else "before"
                try:
                    made = client.chat.completions.create(
                        model=BIG, max_tokens=100, messages=[{"role": "user", "content": PROMPT}]
                    )
                    tally[f"{reached} {made.model}"] += 1
                except allowance.AllowanceExceeded as refusal:
                    over = refusal.reason == "exhausted"
    unfinished = Path(f"{answer}.new")
    unfinished.write_text(json.dumps(tally))
    unfinished.rename(answer)
