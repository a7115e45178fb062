"""An agent that asks a tool again and again, and would never stop by itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from project.demo import chart, clients
from project.demo.offers import Offer
from token_allowance import allowance

MAX_CALLS = 5
MOST_STEPS = 50  # were there no cap
MAX_OUTPUT_TOKENS = 500
TASK = (
    f"List everybody who works under {chart.FIRST_NAME}. Look at one person at a time with the "
    "tool direct_reports, and answer when nobody is left to look at."
)


@dataclass(frozen=True, slots=True)
class Look:
    """One person the agent asked about, and who reports to them."""

    name: str
    reports: tuple[str, ...]


@dataclass(slots=True)
class Walk:
    """How far the agent came. ``stopped`` is the refusal that ended it, if one did."""

    calls: int = 0
    looks: list[Look] = field(default_factory=list)
    answer: str = ""
    stopped: allowance.CapExceeded | None = None

    @property
    def found(self) -> list[str]:
        names = [name for look in self.looks for name in (look.name, *look.reports)]
        return list(dict.fromkeys(names))

    @property
    def of(self) -> int:
        return len(chart.EVERYBODY)


def walk(offer: Offer) -> Walk:
    """Let the model use the tool until it answers or its cap stops it; other refusals raise.

    The caller's ``charge_to(max_calls=...)`` is the cap.
    """
    made = Walk()
    modest = replace(offer, max_output_tokens=min(MAX_OUTPUT_TOKENS, offer.max_output_tokens))
    try:
        for _ in steps(modest, made):
            pass
    except allowance.CapExceeded as refusal:
        made.stopped = refusal
    return made


def steps(offer: Offer, made: Walk) -> Iterator[str]:
    """Make one model call after the other, each with what the tool said before; the model that
    answered. Refusals raise."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
    with clients.opened(offer) as client:
        for _ in range(MOST_STEPS):
            raw = client.chat.completions.with_raw_response.create(
                model=offer.model,
                messages=messages,
                tools=[chart.TOOL],
                **{offer.max_name: offer.max_output_tokens},
            )
            message = raw.parse().choices[0].message
            made.calls += 1
            yield clients.served(offer, raw.headers)
            if not message.tool_calls:
                made.answer = message.content or ""
                break
            messages += _used(message.tool_calls, made.looks)


def _used(calls: Iterable[Any], looks: list[Look]) -> list[dict[str, Any]]:
    """Run the tool for each call; the messages that tell the model about it."""
    made, results = [], []
    for call in calls:
        name = _name(call.function.arguments)
        reports = chart.direct_reports(name)
        looks.append(Look(name, tuple(reports)))
        function = {"name": call.function.name, "arguments": call.function.arguments}
        made.append({"id": call.id, "type": "function", "function": function})
        results.append(
            {"role": "tool", "tool_call_id": call.id, "content": json.dumps(reports)},
        )
    return [{"role": "assistant", "tool_calls": made}, *results]


def _name(arguments: str) -> str:
    """What a model makes up need not be JSON."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return ""
    name = found.get("name") if isinstance(found, dict) else None
    return name if isinstance(name, str) else ""
