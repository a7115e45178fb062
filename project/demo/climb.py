"""An agent that works until a budget is used up: in full, then cheaply, then not at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from project.demo import agent, figures, offers
from project.demo.people import Person
from token_allowance import allowance
from token_allowance.models import Reservation

TENANT = "acme"
FEATURE = "climb"


@dataclass(frozen=True, slots=True)
class Step:
    """One call: which model answered, and how much of the budget was used after it."""

    model: str
    cheaper: bool
    spent: str
    percent: str

    def as_dict(self) -> dict[str, Any]:
        return {"model": self.model, "spent": self.spent, "percent": self.percent}


@dataclass(slots=True)
class Climb:
    climber: Person
    steps: list[Step] = field(default_factory=list)
    walk: agent.Walk = field(default_factory=agent.Walk)
    stopped: allowance.AllowanceExceeded | None = None


def next_climber() -> Person:
    """Somebody who has used nothing today: nobody's budget is used up by a climb."""
    before = Reservation.objects.filter(feature=FEATURE).values("user").distinct().count()
    return Person(f"climber-{before + 1}", TENANT)


def run(climber: Person) -> Climb:
    """Let the agent use its tool until no call is admitted any more."""
    made, offer = Climb(climber), offers.climbing()
    try:
        with allowance.charge_to(tenant=TENANT, user=climber.user, feature=FEATURE):
            for model in agent.steps(offer, made.walk):
                mine = figures.meters(climber)[0]
                cheaper = model != offer.model
                made.steps.append(Step(model, cheaper, mine.spent, mine.percent))
    except allowance.AllowanceExceeded as refusal:
        made.stopped = refusal
    return made
