"""More than a limit allows, for a while."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Increase:
    """An extra amount until a moment: of one tenant's or user's budget, or of all of a limit's."""

    amount: int
    until: dt.datetime
    tenant: str = ""
    user: str = ""

    def adds_to(self, values: Mapping[str, str], now: dt.datetime) -> bool:
        """``values`` are those that the budget itself is of."""
        named = (("tenant", self.tenant), ("user", self.user))
        return now < self.until and all(values.get(n) == v for n, v in named if v)
