"""Sums of ledger rows, and whose they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from token_allowance import keys

Cell = tuple[str, str]  # the smallest part that is told apart: (tenant, feature)


@dataclass(frozen=True, slots=True)
class Sums:
    """Of finished and charged calls. The sums of squares, which tell how far such sums stray by
    themselves, are known of the last calls only: roll-ups do not keep them."""

    calls: int = 0
    micros: int = 0
    tokens: int = 0
    squared_micros: float = 0.0
    squared_tokens: float = 0.0

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.calls + other.calls,
            self.micros + other.micros,
            self.tokens + other.tokens,
            self.squared_micros + other.squared_micros,
            self.squared_tokens + other.squared_tokens,
        )


NONE = Sums()
Cells = Mapping[Cell, Sums]


def total(parts: Iterable[Sums]) -> Sums:
    found = NONE
    for part in parts:
        found += part
    return found


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """A tenant, a feature, a feature of a tenant; without either: everything."""

    tenant: str = ""
    feature: str = ""

    @classmethod
    def parsed(cls, text: str) -> Target:
        values = keys.values(text)
        return cls(values.get("tenant", ""), values.get("feature", ""))

    def __str__(self) -> str:
        values = (("tenant", self.tenant), ("feature", self.feature))
        return keys.scope(tuple(pair for pair in values if pair[1]))

    @property
    def name(self) -> str:
        """As a message calls it."""
        return " / ".join(filter(None, (self.feature, self.tenant))) or "everything"

    @property
    def is_global(self) -> bool:
        return not self.tenant and not self.feature

    def holds(self, cell: Cell) -> bool:
        return self.tenant in ("", cell[0]) and self.feature in ("", cell[1])

    def of(self, cells: Cells) -> Sums:
        return total(sums for cell, sums in cells.items() if self.holds(cell))


def summed(cells: Cells) -> dict[Target, Sums]:
    """The sums of each target that has a name here."""
    found: dict[Target, Sums] = {}
    for (tenant, feature), sums in cells.items():
        for target in {Target(tenant=tenant), Target(feature=feature), Target()}:
            found[target] = found.get(target, NONE) + sums
    return found
