"""The ledger: prove this number; what happened to this call?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponseBase
from django.utils import timezone
from django.views.decorators.http import require_safe

from token_allowance import counters, limits
from token_allowance.admin import arithmetic
from token_allowance.models import Adjustment, Reservation
from token_allowance.money import to_dollars, to_micros
from token_allowance_dashboard import exports, page, periods
from token_allowance_dashboard.access import EXPORT, LEDGER, access, screen
from token_allowance_dashboard.periods import Period

PAGE = 50
EXPORTED = 100_000
EXACT = ("tenant", "user", "session", "feature", "provider", "model", "trace_id")
STATES = tuple(Reservation.States.values)
NONE = "none"
COLUMNS = (
    "id", "created_at", "settled_at", "tenant", "user", "session", "feature", "provider", "model",
    "requested_model", "state", "reserved_micros", "cost_micros", "input_tokens", "output_tokens",
    "cache_read_tokens", "trace_id",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Held:
    """What a call took from one budget."""

    scope: str
    window: str
    unit: str
    amount: int


@require_safe
@screen(LEDGER)
def ledger(request: HttpRequest) -> HttpResponseBase:
    period = periods.of(request.GET, timezone.now(), "hour")
    named = {n: v for n in EXACT if (v := request.GET.get(n, "").replace("\x00", ""))}
    state = request.GET.get("state", "")
    least = _micros(request.GET.get("over", ""))
    rows = _rows(request, period, named, state, least)
    if request.GET.get("format") == "csv":
        if not access(request).may(EXPORT):
            raise PermissionDenied
        return _csv(rows)
    shown, newer, older = _paged(request, rows)
    context = {
        "rows": shown,
        "newer": newer,
        "older": older,
        "period": period,
        "ranges": periods.CHOICES,
        "named": named,
        "fields": [(name, request.GET.get(name, "")) for name in EXACT],
        "states": STATES,
        "state": state,
        "over": request.GET.get("over", "") if least else "",
    }
    question = "Which calls make up this number?"
    return page.show(request, "ledger.html", context, title="Ledger", question=question,
                     tab="ledger")  # fmt: skip


def _rows(
    request: HttpRequest, period: Period, named: dict[str, str], state: str, least: int
) -> QuerySet[Reservation]:
    rows = Reservation.objects.order_by("-id")
    tenants = access(request).tenants
    if tenants is not None:
        rows = rows.filter(tenant__in=tenants)
    rows = rows.filter(**{name: "" if value == NONE else value for name, value in named.items()})
    if "trace_id" not in named:  # one trace is found whenever it was
        rows = rows.filter(created_at__gte=period.start, created_at__lt=period.end)
    if state in STATES:
        rows = rows.filter(state=state)
    return rows.filter(cost_micros__gte=least) if least else rows


def _paged(request: HttpRequest, rows: QuerySet[Reservation]) -> tuple[list[Reservation], str, str]:
    """One page, with the ids to go on from: by key, so that no page counts or skips rows."""
    after, before = _id(request.GET.get("after", "")), _id(request.GET.get("before", ""))
    if after is not None:
        newest = list(rows.filter(id__gt=after).order_by("id")[: PAGE + 1])
        shown = newest[:PAGE][::-1]
        newer = str(shown[0].pk) if len(newest) > PAGE else ""
        return shown, newer, str(shown[-1].pk) if shown else ""
    if before is not None:
        rows = rows.filter(id__lt=before)
    found = list(rows[: PAGE + 1])
    shown = found[:PAGE]
    newer = str(shown[0].pk) if before is not None and shown else ""
    return shown, newer, str(shown[-1].pk) if len(found) > PAGE else ""


def _id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _micros(dollars: str) -> int:
    try:
        return to_micros(dollars) if dollars else 0
    except (TypeError, ValueError):
        return 0


def _csv(rows: QuerySet[Reservation]) -> HttpResponseBase:
    """What is shown, whole: up to a hundred thousand rows, and a last line that says if cut."""

    def lines() -> Any:
        for number, row in enumerate(rows.iterator(chunk_size=2_000)):
            if number >= EXPORTED:
                yield [f"cut after {EXPORTED} rows: choose a shorter period"]
                return
            yield [_cell(row, name) for name in COLUMNS]

    heads = [name.replace("_micros", "_dollars") for name in COLUMNS]
    return exports.table("ledger", heads, lines())


def _cell(row: Reservation, name: str) -> object:
    value = getattr(row, name)
    if name.endswith("_micros"):
        return "" if value is None else to_dollars(value)
    return value if isinstance(value, int) else str(value or "")


@require_safe
@screen(LEDGER)
def reservation(request: HttpRequest, pk: UUID) -> HttpResponseBase:
    row = Reservation.objects.filter(pk=pk).first()
    if row is None:
        raise Http404
    access(request).check(row.tenant)
    siblings = Reservation.objects.none()
    if row.trace_id:
        siblings = Reservation.objects.filter(trace_id=row.trace_id).exclude(pk=pk)
        if (tenants := access(request).tenants) is not None:
            siblings = siblings.filter(tenant__in=tenants)
    context = {
        "row": row,
        "difference": arithmetic.difference(row),
        "arithmetic": arithmetic.written_out(row),
        "held": [_held(*hold) for hold in row.holds],
        "siblings": siblings.order_by("id")[:PAGE],
        "adjustments": Adjustment.objects.filter(key__in=[hold[0] for hold in row.holds])[:PAGE],
        "names": limits.DIMENSIONS,
    }
    return page.show(request, "reservation.html", context, title="One call",
                     question="What happened to this call, and why did it cost that?",
                     tab="ledger")  # fmt: skip


def _held(key: str, unit: str, amount: int) -> Held:
    budget = counters.budget_of(key)
    limit = budget.limit
    values = " and ".join(f"{name} {value}" for name, value in budget.values) or "everyone together"
    start = budget.window.start
    begins = f" from {start:%Y-%m-%d %H:%M} UTC" if start else ""
    return Held(values, f"{limit.window}{begins}", unit, amount)
