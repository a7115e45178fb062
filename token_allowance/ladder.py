"""The ladder: what serves a call instead, once one of its budgets has reached its degrade level."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from token_allowance.limits import EACH


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A degrade rule. ``to_model`` ``""`` keeps the model, ``max_output_tokens`` None the length.

    A ladder has one step: what a step leads to is never the beginning of another.
    """

    from_model: str  # its name in limits, or EACH
    to_model: str = ""
    max_output_tokens: int | None = None
    feature: str = ""


class Ladder:
    """The steps in force, by where they begin."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self._steps: dict[tuple[str, str], Step] = {}
        for step in steps:  # names that stand for one model: the first is the one without a date
            self._steps.setdefault((step.from_model, step.feature), step)

    def __bool__(self) -> bool:
        return bool(self._steps)

    def step(self, model: str, feature: str) -> Step | None:
        """The step for such calls; ``model`` is its name in limits.

        A step for the call's feature goes before one for all, then one for its model before one
        for each.
        """
        for place in ((model, feature), (EACH, feature), (model, ""), (EACH, "")):
            if found := self._steps.get(place):
                return found
        return None
