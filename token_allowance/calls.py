"""allowance.call: a model call that is not HTTP through a metered client, reserved by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

from token_allowance import conf, refusal_counts, settlements, streams, threads, waiting
from token_allowance.attribution import Charge, charge_to
from token_allowance.bills import Account
from token_allowance.decisions import reserve, reserving
from token_allowance.endings import aend
from token_allowance.exceptions import ReservationError, SwitchEngaged
from token_allowance.limits import checked_identifier
from token_allowance.plans import Attempt
from token_allowance.providers.rewriting import Change
from token_allowance.reservations import Reservation
from token_allowance.usage import Usage

NO_USAGE = Usage()
HOUR_SECONDS = 3600


class call:
    """Reserve on entry, settle on exit, with ``with`` or ``async with``.

    Leaving the block normally without ``record`` charges the reservation, flagged ``estimated``;
    leaving it by an exception before anything was recorded charges it flagged ``uncertain``, unless
    ``release`` said that nothing was sent. Metered clients used inside are not counted again (C52).
    """

    def __init__(
        self,
        *,
        provider: str,
        model: str,
        input_tokens: int = 0,
        max_output_tokens: int | None = None,
        service_tier: str = "",
        idempotency_key: str | None = None,
        tenant: Any = None,
        user: Any = None,
        session: Any = None,
        feature: Any = None,
    ) -> None:
        key = checked_identifier("idempotency_key", idempotency_key) if idempotency_key else ""
        self.attempt = Attempt(
            provider=provider,
            model=model,
            input_tokens=input_tokens,
            max_output_tokens=max_output_tokens,
            service_tier=service_tier,
            idempotency_key=key,
            changeable=Change.NOTHING if max_output_tokens == 0 else Change.ALL,
        )
        self._charge_to = charge_to(tenant=tenant, user=user, session=session, feature=feature)
        self._reservation: Reservation | None = None
        self._recorded: Usage | None = None
        self._refusal: SwitchEngaged | None = None
        self._left = False

    @property
    def model(self) -> str:
        """The model to call: a cheaper one if a budget has reached its degrade level."""
        return self._served.model

    @property
    def max_output_tokens(self) -> int | None:
        """The most to ask for, which may be less than was given; None: nothing limits it."""
        return self._served.max_output_tokens

    @property
    def _served(self) -> Attempt:
        made = self._reservation
        return self.attempt if made is None else made.plan.attempt

    @property
    def reservation(self) -> Reservation:
        """The hold; ReservationError before the block is entered."""
        if self._reservation is None:
            raise ReservationError("allowance.call() reserves when its block is entered.")
        return self._reservation

    @property
    def repeated(self) -> bool:
        """True if the idempotency key was used before: that first call is the one charged."""
        return self.reservation.repeated

    def record(self, usage: Usage) -> None:
        """Add what was used. May be called many times; the sum is charged when the block ends."""
        self._check_open()
        self._recorded = usage if self._recorded is None else self._recorded + usage

    def extend(self, usage: Usage = NO_USAGE, *, seconds: float | None = None) -> None:
        """Hold more, or for longer. Raises AllowanceExceeded if a budget has no room for it, and
        SwitchEngaged under a switch that cuts what is under way.
        """
        self._check_open()
        threads.call(lambda: self._extend(usage, seconds))

    async def aextend(self, usage: Usage = NO_USAGE, *, seconds: float | None = None) -> None:
        self._check_open()
        await threads.acall(lambda: self._extend(usage, seconds))

    def _extend(self, usage: Usage, seconds: float | None) -> None:
        made = self.reservation
        attempt, attribution = made.plan.attempt, made.plan.attribution
        with refusal_counts.counted(attempt.provider, attempt.model, attribution):
            self._refusal = streams.refusal(made.plan)
            if self._refusal is not None:
                raise self._refusal
            made.extend(usage, seconds=seconds)

    def release(self) -> None:
        """Nothing was sent: give everything back. A repeated call has nothing to give."""
        self._check_open()
        threads.call(self.reservation.abandon)

    def mark_uncertain(self) -> None:
        """It was sent and its outcome is unknown: charge what was reserved, flagged."""
        self._check_open()
        threads.call(lambda: self.reservation.settle_estimate("uncertain"))

    def defer(self, deferred_id: str, *, hours: float = 24) -> None:
        """The answer comes later: keep the hold, for settle_deferred(deferred_id, usage).

        Raises ReservationError if the id stands for another call already.
        """
        self._check_open()
        name = checked_identifier("deferred_id", deferred_id)
        threads.call(self._defer, name, hours * HOUR_SECONDS)

    def _defer(self, name: str, seconds: float) -> None:
        known = conf.store().find(deferred_id=name)
        if known is not None and known["id"] != str(self.reservation.id):
            raise ReservationError(f"{name!r} already stands for another call that was deferred.")
        self.reservation.extend(seconds=seconds, deferred_id=name)

    def _check_open(self) -> None:
        if self.reservation.finished or self._left:
            raise ReservationError("This call is over; its reservation is final.")

    def _begin(self, charge: Charge, reservation: Reservation) -> call:
        self._reservation = reservation
        holders = (*charge.holders, reservation)
        self._charge_to.enter(replace(charge, covered=True, holders=holders))
        return self

    def _end(self, error: BaseException | None) -> None:
        reservation = self.reservation
        self._left = True
        if reservation.finished or reservation.deferred:
            return
        if self._recorded is not None:
            cut = ("interrupted", "cut") if error and error is self._refusal else ()
            reservation.settle_account(Account(usage=self._recorded, flags=cut))
        elif reservation.repeated:
            reservation.leave()  # the first call may be in flight: it ends itself
        elif error is None:
            reservation.settle_estimate("estimated")
        else:
            reservation.settle_estimate("uncertain")

    def __enter__(self) -> call:
        charge = self._charge_to.charge()
        once = partial(reserve, self.attempt, charge.attribution(), charge)
        made = threads.call(waiting.reserve, once)
        return self._begin(charge, made)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._charge_to.__exit__(kind, error, tb)
        threads.finish(lambda: self._end(error))

    async def __aenter__(self) -> call:
        charge = self._charge_to.charge()
        attribution = await charge.aattribution()
        once = partial(reserving, lambda: self.attempt, attribution, charge)
        made = await waiting.areserve(once)
        return self._begin(charge, made)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._charge_to.__exit__(kind, error, tb)
        await aend(partial(self._end, error))


def settle_deferred(deferred_id: str, usage: Usage) -> str:
    """Settle a deferred call from any process; what happened: settled, late, repeat, conflict."""
    return threads.call(settlements.settle_deferred, deferred_id, usage).value


async def asettle_deferred(deferred_id: str, usage: Usage) -> str:
    return (await threads.acall(settlements.settle_deferred, deferred_id, usage)).value
