"""What a reservation holds, as Redis keeps it: counters by key, with their generation."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from token_allowance.limits import Amounts, Budget, Unit
from token_allowance.stores.base import Row
from token_allowance.stores.redis.names import Names, slice_of

OPEN, EXPIRED, CHARGED, SETTLED, RELEASED = "R", "E", "X", "S", "V"
written = json.JSONEncoder(separators=(",", ":")).encode  # made once: dumps makes one a call
Entry = tuple[str, str, int, int]
LETTERS = {Unit.COST: "c", Unit.TOKENS: "t", Unit.CALLS: "k"}


@dataclass(frozen=True, slots=True)
class Holds:
    """``[key, unit, amount, generation]`` for each counter, and the text that R has for them.

    ``whole`` is what the call holds altogether: micro-dollars or None, tokens; and a number that
    tells the call that made the reservation from another with the same id.
    """

    entries: tuple[Entry, ...]
    whole: tuple[int | None, int, int]
    text: str

    def ledger(self) -> list[list[Any]]:
        """As a ledger row has them: it knows no generations."""
        return [[key, unit, amount] for key, unit, amount, _ in self.entries]

    @property
    def units(self) -> str:
        """A letter for each; a capital where it is a slice of a rolling budget."""
        return "".join(letter(key, unit) for key, unit, *_ in self.entries)

    def counters(self, names: Names) -> list[str]:
        return [name for key, _, _, since in self.entries for name in names.counter(key, since)]

    def amounts(self) -> list[int]:
        return [amount for _, _, amount, _ in self.entries]

    def slices(self) -> list[int]:
        return [n for key, *_ in self.entries if (n := slice_of(key)) is not None]

    def more(self, amounts: Amounts) -> Holds:
        """The same after this much was added to each."""
        micros, tokens, number = self.whole
        if micros is not None:
            micros += amounts.cost_micros or 0
        entries = (
            (key, unit, amount + amounts.of(Unit(unit)), since)
            for key, unit, amount, since in self.entries
        )
        return of(entries, (micros, tokens + amounts.tokens, number))

    def with_counter(self, key: str, unit: str, amount: int, since: int) -> Holds | None:
        """The same held in one counter more; None if it is already."""
        if any(entry[0] == key and entry[3] == since for entry in self.entries):
            return None
        return of((*self.entries, (key, unit, amount, since)), self.whole)


NOTHING = (None, 0, 0)


def of(entries: Iterable[Entry], whole: tuple[int | None, int, int] = NOTHING) -> Holds:
    kept = tuple(entries)
    return Holds(kept, whole, written([whole, kept])[1:-1])


def of_budgets(budgets: Sequence[Budget], amounts: Amounts) -> Holds:
    whole = (amounts.cost_micros, amounts.tokens, random.getrandbits(32))
    return of(
        ((b.held_in, b.limit.unit.value, amounts.of(b.limit.unit), b.since) for b in budgets), whole
    )


def of_row(row: Row, generation: Callable[[str], int] = lambda key: 0) -> Holds:
    """What a ledger row holds; it does not know in which generation its counters are."""
    entries = ((key, unit, int(amount), generation(key)) for key, unit, amount in row["holds"])
    return of(entries, (row["reserved_micros"], row["reserved_tokens"], 0))


def read(text: str | bytes) -> Holds:
    """From the text in R, which stands after its first two characters."""
    given = text.decode() if isinstance(text, bytes) else text
    whole, entries = json.loads(f"[{given}]")
    micros, tokens, number = whole
    return Holds(tuple((k, u, a, s) for k, u, a, s in entries), (micros, tokens, number), given)


@lru_cache(maxsize=20_000)
def letter(key: str, unit: str) -> str:
    found = LETTERS[Unit(unit)]
    return found.upper() if slice_of(key) is not None else found
