"""What a caller is told when a budget has no room."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence

from token_allowance.attribution import Charge
from token_allowance.exceptions import AllowanceExceeded, TooLarge
from token_allowance.limits import Attribution, Budget, Unit, zone
from token_allowance.money import format_usd
from token_allowance.runs import cap_exceeded
from token_allowance.stores.base import Decision, Request, Room
from token_allowance.stores.tickets import may_queue
from token_allowance.windows import Span

FOR_EVER = dt.datetime.max.replace(tzinfo=dt.UTC)
HELD_SECONDS = 3  # until a call may try again that waited for calls in flight


class Held(Exception):
    """Only calls in flight, or earlier in line, keep out a call that waits.

    ``rank`` stand before it; ``refusal`` makes its error from the seconds it has waited. It is
    ``hopeless`` if the calls that it is made in hold the room: they wait for it.
    """

    def __init__(
        self, refusal: Callable[[float], AllowanceExceeded], rank: int, hopeless: bool
    ) -> None:
        super().__init__("calls in flight hold the room")
        self.refusal = refusal
        self.rank = rank
        self.hopeless = hopeless


def refused(
    request: Request, decision: Decision, attribution: Attribution, charge: Charge
) -> AllowanceExceeded | Held:
    """What to raise for a refusal: the caller's error, or Held if it waits and waiting may help."""
    rooms, own = decision.rooms, any(_own(request, room, charge) for room in decision.rooms)

    def refusal(waited_seconds: float | None = None) -> AllowanceExceeded:
        return exceeded(request, rooms, attribution, charge.trace_id, waited_seconds, own)

    if request.ticket is None or not may_queue(request, rooms):
        return refusal()
    return Held(refusal, decision.rank, own)


def exceeded(
    request: Request,
    rooms: Sequence[Room],
    attribution: Attribution,
    trace_id: str,
    waited_seconds: float | None = None,
    own: bool = False,
) -> AllowanceExceeded:
    """The error for the budgets that refused; of several, a cap or the one that blocks longest.

    ``waited_seconds``: for calls in flight, None if the call does not wait. ``own``: for those that
    it is made in.
    """
    for room in rooms:
        if room.budget.is_cap:
            limit = room.budget.limit
            error = cap_exceeded(
                limit.unit, limit.amount, room.used, room.reserved, request.need(room.budget)
            )
            error.trace_id = trace_id
            return error
    room = max(rooms, key=lambda room: _severity(request, room))
    budget, need = room.budget, request.need(room.budget)
    limit = budget.limit
    reason = _reason(room, need)
    kind = TooLarge if reason == "too_large" else AllowanceExceeded
    name = f"{limit.scope} {limit.adjective} budget"
    resets_at = room.resets_at(need)
    retry_after = None if kind is TooLarge else Span(None, resets_at).seconds_left(request.now)
    held = ""
    if reason == "held":
        held = _held(room, need, waited_seconds, own)
        if waited_seconds is not None:
            retry_after = min(HELD_SECONDS, retry_after or HELD_SECONDS)
    return kind(
        f"{name} exceeded: {_figures(room, need, reason, held)}",
        code=f"{name} exceeded".replace(" ", "_").replace("-", "_"),
        reason=reason,
        key=budget.key,
        scope=limit.scope,
        window=limit.window.value,
        unit=limit.unit.value,
        limit=limit,
        amount=limit.amount,
        used=room.used,
        reserved=room.reserved,
        available=room.available,
        needed=need,
        retry_after_seconds=retry_after,
        resets_at=resets_at,
        shared=wider_than_caller(budget, attribution),
        trace_id=trace_id,
    )


def used_up(request: Request, rooms: Sequence[Room]) -> bool:
    """Is one of these budgets at its stop, where it refuses and nothing cheaper is served instead?

    The cheaper call need not be counted in it: a budget may be of one model.
    """
    return any(
        request.need(room.budget) > 0 and room.used >= room.budget.limit.stop_amount
        for room in rooms
    )


def wider_than_caller(budget: Budget, attribution: Attribution) -> bool:
    """Do others than the caller spend from this budget, so that its amounts are not theirs?"""
    for name in ("user", "session", "tenant"):
        if getattr(attribution, name):
            own = {"user": {"user", "session"}}.get(name, {name})
            return not own & set(budget.limit.shape)
    return True


def _reason(room: Room, need: int) -> str:
    stop = room.budget.limit.stop_amount
    if need > stop > 0:
        return "too_large"
    return "held" if room.used < stop and room.used + need <= stop else "exhausted"


def _severity(request: Request, room: Room) -> tuple[bool, dt.datetime, str]:
    need = request.need(room.budget)
    return _reason(room, need) == "too_large", room.resets_at(need) or FOR_EVER, room.budget.key


def _own(request: Request, room: Room, charge: Charge) -> bool:
    """Would the calls that this one is made in, on their own, leave it no room?"""
    key, need = room.budget.key, request.need(room.budget)
    own = sum(holder.holds(key) for holder in charge.holders)
    return own > 0 and room.used + own + need > room.budget.limit.stop_amount


def _held(room: Room, need: int, waited_seconds: float | None, own: bool) -> str:
    """The sentence on why there is no room now, if there is more to say than the figures."""
    if own:
        return " The calls that it is made in hold the room: they would wait for each other."
    fits = room.used + room.reserved + need <= room.budget.limit.stop_amount
    who = "Calls that came before it wait for the room" if fits else "Calls in flight hold the room"
    if waited_seconds is None:
        return f" {who}." if fits else ""
    waited = f"{waited_seconds:.1f}".removesuffix(".0")
    return f" {who}; it waited {waited} s. Try again in a moment."


def _figures(room: Room, need: int, reason: str, held: str) -> str:
    limit, end = room.budget.limit, room.resets_at(need)
    amount, needs = _text(limit.unit, limit.amount), _text(limit.unit, need)
    if reason == "too_large":
        return (
            f"this call may need {needs}, more than the whole budget of {amount}. "
            "Ask for a shorter answer or a cheaper model."
        )
    spent = f"{_number(limit.unit, room.used)} of {amount} used"
    if room.reserved:
        spent += f", {_text(limit.unit, room.reserved)} reserved by calls in flight"
    again = ""
    if end is not None:
        local = end.astimezone(zone(limit.time_zone))
        again = f" It starts again at {local:%Y-%m-%d %H:%M} ({limit.time_zone})."
        if room.budget.slice is not None:
            again = f" It has room for this again at {local:%Y-%m-%d %H:%M:%S} ({limit.time_zone})."
    wanted = f"; this call may need {needs}" if need else ""
    return f"{spent}{wanted}.{held or again}"


def _number(unit: Unit, number: int) -> str:
    return format_usd(number) if unit is Unit.COST else f"{number:,}"


def _text(unit: Unit, number: int) -> str:
    if unit is Unit.COST:
        return format_usd(number)
    return f"{number:,} {unit.value if number != 1 else unit.value.removesuffix('s')}"
