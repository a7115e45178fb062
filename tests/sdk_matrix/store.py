from __future__ import annotations

from token_allowance.stores.base import Decision, Outcome, Request
from token_allowance.stores.database import DatabaseStore


class CountingStore(DatabaseStore):
    """Counts reservations asked for. Asking again, with a newer policy, is the same one."""

    reserves = 0

    def reserve(self, request: Request) -> Decision:
        decision = super().reserve(request)
        CountingStore.reserves += decision.outcome is not Outcome.STALE
        return decision
