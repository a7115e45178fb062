"""Caps of one request or job: counted in memory, or by the store for several processes."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from token_allowance import blocking
from token_allowance.exceptions import CapExceeded
from token_allowance.limits import Budget, Unit, cap_budget
from token_allowance.money import format_usd

WRITING_SECONDS = 10.0  # the longest that sharing a run waits for a call being reserved


class Run:
    """The caps of one request or job, shared by everything it calls (case C40).

    Memory counts it until a task header takes its ``path`` along; from then on the store does, for
    all processes alike, beginning with what the ledger holds of it. ``outer`` is the path of the
    run around it; without one it cannot leave this process.
    """

    def __init__(
        self,
        max_calls: int | None = None,
        max_cost_micros: int | None = None,
        *,
        outer: str | None = None,
    ) -> None:
        self.id = new_id()
        self.path = "" if outer is None else f"{outer}{self.id}/"
        self.max_calls = max_calls
        self.max_cost_micros = max_cost_micros
        self.calls = 0
        self.cost_micros = 0  # settled and in flight
        self.since = microseconds_now()
        self.shared = False
        self.untouched = True  # no call was counted in memory
        self._sharing = False
        self._writing = 0
        self._changed = threading.Condition()

    @classmethod
    def elsewhere(
        cls,
        path: str,
        max_calls: int | None,
        max_cost_micros: int | None,
        since: int,
        untouched: bool,
    ) -> Run:
        """A run that began in another process, or in another attempt at the same task."""
        run = cls(max_calls, max_cost_micros)
        run.path, run.since, run.untouched = path, since, untouched
        run.shared = True
        return run

    def share(self) -> None:
        """Let the store count it from now on, once all that memory has counted is in the ledger."""
        with self._changed:
            if self.shared:
                return
            self._sharing = True
            self._changed.wait_for(lambda: not self._writing, WRITING_SECONDS)
            self.shared, self._sharing = True, False
            self._changed.notify_all()

    def enter(self) -> bool:
        """A call is about to be reserved; True if memory counts it, and ``leave`` has to follow."""
        with self._changed:
            self._changed.wait_for(lambda: not self._sharing, 2 * WRITING_SECONDS)
            if not self.shared:
                self._writing += 1
                self.untouched = False
            return not self.shared

    def leave(self) -> None:
        with self._changed:
            self._writing -= 1
            self._changed.notify_all()

    def budgets(self) -> Iterator[Budget]:
        """What the store counts, in the order in which it locks."""
        for unit, amount in ((Unit.CALLS, self.max_calls), (Unit.COST, self.max_cost_micros)):
            if amount is not None:
                yield cap_budget(
                    self.path, unit, amount, since=self.since, untouched=self.untouched
                )

    def take(self, cost_micros: int, calls: int = 1) -> None:
        """Count a call and its cost; CapExceeded, and nothing counted, if either is too much."""
        with self._changed:
            max_calls, max_cost = self.max_calls, self.max_cost_micros
            if self.shared:  # the store refuses
                max_calls = max_cost = None
            if calls and max_calls is not None and self.calls + calls > max_calls:
                raise cap_exceeded("calls", max_calls, self.calls, 0, calls)
            cost = self.cost_micros + cost_micros
            if cost_micros > 0 and max_cost is not None and cost > max_cost:
                raise cap_exceeded("cost", max_cost, self.cost_micros, 0, cost_micros)
            self.calls += calls
            self.cost_micros += cost_micros

    def give_back(self, calls: int, cost_micros: int) -> None:
        with self._changed:
            self.calls -= calls
            self.cost_micros -= cost_micros


class Job:
    """One request or one run of a job, by identity: what a metered client's own caps belong to.

    Of a Celery task it knows the ``message``, the same in every attempt; ``since`` when, in
    microseconds since 1970; whether it was delivered before; and ``layers``, the functions it runs.
    """

    def __init__(
        self,
        message: str = "",
        since: int = 0,
        again: bool = False,
        layers: tuple[Callable[..., Any], ...] = (),
    ) -> None:
        self.message = message
        self.since = since
        self.again = again
        self.layers = layers

    def part(self, function: Callable[..., Any] | None) -> str:
        """A name for the caps of a decorator on the task itself, the same in every attempt."""
        if not self.message or function not in self.layers:
            return ""
        return f"{self.message}.{self.layers.index(function)}"


def new_id() -> str:
    """96 random bits, without a character that a prefix search would take for a sign."""
    return uuid.uuid4().hex[:24]


def microseconds_now() -> int:
    return time.time_ns() // 1000


def path(runs: Sequence[Run]) -> str:
    """The path of the innermost of these runs that has one."""
    return next((run.path for run in reversed(runs) if run.path), "")


def budgets(runs: Sequence[Run]) -> list[Budget]:
    """The caps that the store counts, in the order in which it locks."""
    found = [budget for run in runs if run.shared for budget in run.budgets()]
    return sorted(found, key=lambda budget: budget.key)


@contextmanager
def writing(runs: Sequence[Run]) -> Iterator[None]:
    """While a call is reserved: who counts these runs, memory or the store, stays as it is."""
    if blocking.is_forbidden() and any(run.path and not run.shared for run in runs):
        raise blocking.WouldBlock  # sharing it would wait on the loop for this very call
    entered = [run for run in runs if run.enter()]
    try:
        yield
    finally:
        for run in entered:
            run.leave()


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


def cap_exceeded(unit: str, amount: int, used: int, reserved: int, needed: int) -> CapExceeded:
    """The error of a cap; amounts in micro-dollars for ``cost``, else calls."""
    if unit == "cost":
        text = (
            f"{format_usd(used + reserved)} of {format_usd(amount)} is used or reserved; "
            f"this call may need {format_usd(needed)}"
        )
    else:
        text = f"{used + reserved} of {amount} calls are made"
    return CapExceeded(
        f"per-request {unit} cap exceeded: {text}. Raise max_{unit}, or make fewer calls.",
        code=f"per_request_{unit}_exceeded",
        key="request",
        scope="request",
        window="request",
        unit=unit,
        amount=amount,
        used=used,
        reserved=reserved,
        available=max(0, amount - used - reserved),
        needed=needed,
    )
