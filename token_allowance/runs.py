"""Caps of one request or job, counted in this process."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Sequence

from token_allowance.exceptions import CapExceeded
from token_allowance.money import format_usd


class Run:
    """The caps of one request or job, shared by everything it calls (case C40)."""

    def __init__(self, max_calls: int | None = None, max_cost_micros: int | None = None) -> None:
        self.id = uuid.uuid4().hex
        self.max_calls = max_calls
        self.max_cost_micros = max_cost_micros
        self.calls = 0
        self.cost_micros = 0  # settled and in flight
        self._lock = threading.Lock()

    def take(self, cost_micros: int, calls: int = 1) -> None:
        """Count a call and its cost; CapExceeded, and nothing counted, if either is too much."""
        with self._lock:
            if calls and self.max_calls is not None and self.calls + calls > self.max_calls:
                raise self._exceeded("calls", self.max_calls, self.calls, calls)
            cap = self.max_cost_micros
            if cap is not None and cost_micros > 0 and self.cost_micros + cost_micros > cap:
                raise self._exceeded("cost", cap, self.cost_micros, cost_micros)
            self.calls += calls
            self.cost_micros += cost_micros

    def give_back(self, calls: int, cost_micros: int) -> None:
        with self._lock:
            self.calls -= calls
            self.cost_micros -= cost_micros

    def _exceeded(self, unit: str, amount: int, used: int, needed: int) -> CapExceeded:
        if unit == "cost":
            text = (
                f"{format_usd(used)} of {format_usd(amount)} is used or reserved; "
                f"this call may need {format_usd(needed)}"
            )
        else:
            text = f"{used} of {amount} calls are made"
        return CapExceeded(
            f"per-request {unit} cap exceeded: {text}. Raise max_{unit}, or make fewer calls.",
            code=f"per_request_{unit}_exceeded",
            scope="request",
            window="request",
            unit=unit,
            amount=amount,
            used=used,
            reserved=0,
            available=max(0, amount - used),
            needed=needed,
        )


def take(runs: Sequence[Run], cost_micros: int, calls: int, *, observe: bool) -> bool:
    """Count it in every run, or in none and CapExceeded. True: too much, but only observed."""
    exceeded = False
    for place, run in enumerate(runs):
        try:
            run.take(cost_micros, calls)
        except CapExceeded:
            if not observe:
                give_back(runs[:place], cost_micros, calls)
                raise
            run.give_back(-calls, -cost_micros)
            exceeded = True
    return exceeded


def give_back(runs: Iterable[Run], cost_micros: int, calls: int) -> None:
    for run in runs:
        run.give_back(calls, cost_micros)
