"""Roll-ups of the ledger: how far each quarter of an hour moves when its rows change."""

from __future__ import annotations

from decimal import Decimal
from operator import add

from token_allowance.stores.base import Row
from token_allowance.stores.events import moment

TABLE = "token_allowance_hourlyspend"
QUARTER_SECONDS = 15 * 60
NAMES = ("tenant", "user", "feature", "provider", "model")
KEY = ("starts_at", *NAMES)
TOKENS = (
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens",
)  # fmt: skip
SUMS = (
    "calls", "estimated_calls", "unpriced_calls", "cost_micros", "cost_exact", "estimated_micros",
    *TOKENS,
)  # fmt: skip
NOT_BY_THE_PROVIDER = frozenset(("estimated", "uncertain", "interrupted"))

Key = tuple[int, str, str, str, str, str]  # seconds since 1970, then NAMES
Figures = tuple[int | Decimal, ...]  # by SUMS


class Sums:
    """How far each roll-up moves."""

    def __init__(self) -> None:
        self._found: dict[Key, Figures] = {}

    def move(self, old: Row | None, new: Row) -> None:
        """Let a ledger row take the place of another."""
        if now := figures(new):
            self._add(key(new), now)
        if old and (before := figures(old)):
            self._add(key(new), tuple(-figure for figure in before))

    def moved(self) -> dict[Key, Figures]:
        return {at: sums for at, sums in self._found.items() if any(sums)}

    def _add(self, at: Key, more: Figures) -> None:
        sums = self._found.get(at)
        self._found[at] = more if sums is None else tuple(map(add, sums, more))


def key(row: Row) -> Key:
    """The roll-up that counts this row: by when the call began, whatever the zone of a screen."""
    began = int(moment(row["created_at"]).timestamp())
    return (
        began - began % QUARTER_SECONDS,
        row["tenant"], row["user"], row["feature"], row["provider"], row["model"],
    )  # fmt: skip


def figures(row: Row) -> Figures | None:
    """What this row adds; None if it is not final, or was not charged."""
    if row["settled_at"] is None or row["state"] not in ("settled", "expired"):
        return None
    micros = row["cost_micros"] or 0
    estimated = not NOT_BY_THE_PROVIDER.isdisjoint(row["flags"])
    return (
        1,
        int(estimated),
        int(row["cost_micros"] is None),
        micros,
        Decimal(row["cost_exact"] or 0),
        micros if estimated else 0,
        *[row[name] for name in TOKENS],
    )
