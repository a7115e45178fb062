"""Everything this app raises on purpose.

AllowanceError
 +- AllowanceExceeded        429  a budget has no room
 |   +- CapExceeded          429  the cap of one request or job has no room; waiting does not help
 |   +- TooLarge             422  the call can never fit this budget
 +- SwitchEngaged            503  an operator has stopped such calls
 +- StoreUnavailable         503  the budgets cannot be checked right now
 +- UnknownModel             422  no price for a model that a cost limit covers
 +- UnmeteredEndpoint        501  a metered client was asked for something that cannot be metered
 +- Unattributed             500  nobody to charge: a bug in the caller
 +- ReservationError         500  a reservation was used in a way it does not allow

None of them is a subclass of an SDK's error, and no SDK retries them. All pickle, and all can be
rebuilt from their message alone, as Celery's JSON serializer does.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any


class AllowanceError(Exception):
    """Base of all; do not raise directly. ``status`` is the HTTP status, ``code`` for machines."""

    status = 500
    code = "allowance_error"
    title = "Allowance error"
    retryable = False

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message or self.title)
        for name, value in facts.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


def _rebuild(
    kind: type[AllowanceError], args: tuple[Any, ...], facts: dict[str, Any]
) -> AllowanceError:
    error = kind(*args)
    error.__dict__.update(facts)
    return error


class AllowanceExceeded(AllowanceError):
    """A budget has no room for the call. Nothing was sent and no counter moved.

    ``amount used reserved available needed`` are in the budget's ``unit``: micro-dollars for
    ``cost``, else tokens or calls. ``reason`` is ``held`` (only calls in flight keep this one
    out), ``exhausted``, ``too_large`` or ``cap``. ``shared`` is true when the budget is wider than
    the caller, so that its amounts are not for the caller's eyes.
    """

    status = 429
    code = "budget_exceeded"
    title = "Token budget exceeded"

    reason: str = "exhausted"
    key: str = ""  # of the counter that refused; for staff
    scope: str = ""
    window: str = ""
    unit: str = ""
    limit: Any = None
    amount: int | None = None
    used: int | None = None
    reserved: int | None = None
    available: int | None = None
    needed: int | None = None
    retry_after_seconds: int | None = None
    resets_at: datetime | None = None
    shared: bool = False
    trace_id: str = ""


class CapExceeded(AllowanceExceeded):
    """The cap of one request or job has no room. It does not refill: no Retry-After."""

    code = "per_request_cap_exceeded"
    reason = "cap"


class TooLarge(AllowanceExceeded):
    """The call needs more than the whole budget: it can never fit, however long one waits."""

    status = 422
    reason = "too_large"


class SwitchEngaged(AllowanceError):
    """An operator has stopped calls like this one."""

    status = 503
    code = "switch_engaged"
    title = "Model calls are stopped"

    key: str = ""  # its values, as the scope of a counter names them; for staff
    scope: str = ""
    reason: str = ""
    ends_at: datetime | None = None
    retry_after_seconds: int | None = None


class StoreUnavailable(AllowanceError):
    """The store could not be asked; nothing was sent. The driver's error is the cause."""

    status = 503
    code = "store_unavailable"
    title = "Budgets cannot be checked right now"
    retry_after_seconds: int | None = 5


class UnknownModel(AllowanceError):
    """A cost limit covers the call, and no price is known for its model (case C20)."""

    status = 422
    code = "unpriced_model"
    title = "No price for this model"

    provider: str = ""
    model: str = ""


class UnmeteredEndpoint(AllowanceError):
    """A metered client was asked for an endpoint that cannot be metered (case C74)."""

    status = 501
    code = "unmetered_endpoint"
    title = "This endpoint cannot be metered"


class Unattributed(AllowanceError):
    """A limit looks at a tenant, user or session that the call does not name (case C78)."""

    status = 500
    code = "unattributed"
    title = "Nobody to charge for this model call"


class ReservationError(AllowanceError):
    """A reservation was used in a way it does not allow: settled twice, extended when final."""

    status = 500
    code = "reservation_error"
    title = "Reservation error"
