"""The decision loop: plan a call under the policy, ask the store, and plan again if it says so."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from django.db import Error as DatabaseError
from django.utils import timezone

from token_allowance import conf, degradation, leases, policy, runs, settlements, tries
from token_allowance.attribution import Charge
from token_allowance.exceptions import (
    StoreUnavailable,
    SwitchEngaged,
    Unattributed,
    UnknownModel,
)
from token_allowance.limits import Attribution
from token_allowance.metrics import RESERVE_SECONDS, timed
from token_allowance.plans import Attempt, Plan, blind, plan, stopped
from token_allowance.refusal_counts import counted
from token_allowance.refusals import refused, used_up
from token_allowance.reservations import Reservation
from token_allowance.stores.base import Outcome
from token_allowance.tries import Try
from token_allowance.waiting import Place

logger = logging.getLogger("token_allowance")
TRIES = 20  # policy reloads within one reserve: an edit storm must not starve it (protocol 5)


def reserve(
    attempt: Attempt, attribution: Attribution, charge: Charge, place: Place | None = None
) -> Reservation:
    """Hold what the attempt may need in every budget that applies, or raise an AllowanceError.

    After it returns, the caller dispatches and finishes the reservation whatever happens. With a
    ``place`` in line it is one try of several, and raises Held if another may help.
    """
    return tries.finished(reserving(lambda: attempt, attribution, charge, place))


def reserving(
    find: Callable[[], Attempt],
    attribution: Attribution,
    charge: Charge,
    place: Place | None = None,
) -> Try[Reservation]:
    """``reserve`` as a try: in a thread, or on an event loop. ``find`` may block."""
    attempt = find()
    with counted(attempt.provider, attempt.model, attribution), timed(RESERVE_SECONDS):
        try:
            return (yield from _decided(attempt, attribution, charge, place))
        except StoreUnavailable as error:
            if not conf.current().admits_without_store:
                raise
            planned = blind(attempt, attribution)  # a name that no table holds is refused first
            obey_known_switches(attribution, attempt.model, error)
            logger.warning("token_allowance: the store is down; a call is admitted unmetered")
            reservation = Reservation(planned, charge, timezone.now())
            reservation.take_from_runs(reservation.amounts)
            return reservation


def _decided(
    attempt: Attempt, attribution: Attribution, charge: Charge, place: Place | None
) -> Try[Reservation]:
    """The loop. Only what is yielded reaches the counters; whatever may block is outside of it."""
    store, now = conf.store(), timezone.now()
    first = decided = policy.current() if store.checks_version else policy.confirmed()
    expires, may_degrade, descends = True, True, False
    for _ in range(TRIES):
        with runs.writing(charge.runs):
            planned, decided = _plan(attempt, attribution, charge, decided, now)
            if descends:
                planned = degradation.served(planned, charge.runs, decided, now)
            reservation = Reservation(planned, charge, now)
            lease = conf.current().RESERVATION_SECONDS
            request = reservation.request(reservation.amounts, lease, now)
            ticket = None if place is None else place.ticket
            request = replace(
                request,
                ticket=ticket,
                confirmed=decided is not first,
                may_degrade=may_degrade and bool(decided.ladder),
            )
            reservation.take_from_runs(reservation.amounts)
            try:
                decision = yield request
            except BaseException:
                reservation.give_back_to_runs(reservation.amounts)
                raise
        repeat = decision.outcome is Outcome.REPEAT
        if decision.outcome is Outcome.ADMITTED or (repeat and reservation.adopt(store)):
            if repeat and not descends and "degraded" in reservation.row["flags"]:
                reservation.plan = degradation.served(planned, charge.runs, decided, now)
            _apply_waiting(reservation)
            return reservation
        reservation.give_back_to_runs(reservation.amounts)
        if repeat:
            continue
        if decision.outcome is Outcome.STALE:
            decided = policy.reload(decided)
            may_degrade, descends = True, False  # its levels may be others
            continue
        if decision.outcome is Outcome.DEGRADE:
            may_degrade, descends = False, not used_up(request, decision.rooms)
            continue
        looks = expires and not decision.rank and (place is None or place.looks_for_expired())
        if not looks or not leases.expire_due(decision.rooms, now):
            raise refused(request, decision, attribution, charge)
        expires = False
    raise StoreUnavailable("The limits are being changed faster than a call can be checked.")


def obey_known_switches(attribution: Attribution, model: str, error: StoreUnavailable) -> None:
    """Raise SwitchEngaged if such calls are stopped, as far as is known while a store is down.

    Raises the store's own error where nothing is known and calls are not only observed (case C96).
    """
    settings, now = conf.current(), timezone.now()
    if settings.MODE == "observe":
        return
    decided = policy.known()
    if not isinstance(error.__cause__, DatabaseError):  # then the database may know more
        with suppress(StoreUnavailable):
            decided = policy.confirmed()
    if decided is None:
        raise error
    switch = decided.engaged({**attribution.as_dict(), "model": decided.model(model)}, now)
    if switch is not None and not _observed(decided, attribution.tenant):
        raise stopped(switch, now)


def _observed(decided: policy.Policy, tenant: str) -> bool:
    try:
        return decided.tenant(tenant).observe
    except StoreUnavailable:
        return False


def _apply_waiting(admitted: Reservation) -> None:
    """Settle what waits for the store; an interrupt meanwhile must not cost a new call its hold."""
    try:
        settlements.apply_waiting()
    except BaseException:
        admitted.abandon()
        raise


def _plan(
    attempt: Attempt,
    attribution: Attribution,
    charge: Charge,
    decided: policy.Policy,
    now: dt.datetime,
) -> tuple[Plan, policy.Policy]:
    """The plan, and the policy it follows: nothing is refused by one that may be out of date."""
    try:
        return plan(attempt, attribution, charge.runs, decided, now), decided
    except (SwitchEngaged, Unattributed, UnknownModel):
        confirmed = policy.confirmed()
        if confirmed is decided:
            raise
        return plan(attempt, attribution, charge.runs, confirmed, now), confirmed
