"""Switches: what is stopped, by whom, is it really stopped, and will it work next time?"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.http import require_safe

from token_allowance.labels import Labels
from token_allowance.management import drilled, targets
from token_allowance.models import Drill, HourlySpend, Switch, SwitchEvent, Tenant
from token_allowance_dashboard import exports, page, standing
from token_allowance_dashboard.access import EXPORT, access, screen
from token_allowance_dashboard.spending import Scope

MOST_ENGAGED = 100
MOST_OVER = 50
MOST_FOUND = 5  # of each dimension
MOST_EVENTS = 200
SEARCHED_DAYS = 7
STOP_POLLING = 286  # of htmx
COLUMNS = ("at", "action", "by", "source", "reason", "ends_at", "percent", "cuts_streams")


@dataclass(frozen=True, slots=True)
class Line:
    """One switch in the list."""

    switch: Switch
    parts: tuple[tuple[str, str], ...]
    over_at: dt.datetime | None
    refused: int
    drill: Drill | None

    @property
    def is_running(self) -> bool:
        return self.over_at is None


@dataclass(frozen=True, slots=True)
class Found:
    """Calls that could be stopped: no switch is needed beforehand."""

    parts: tuple[tuple[str, str], ...]

    @property
    def query(self) -> str:
        return urlencode(dict(self.parts))


@require_safe
@screen()
def switches(request: HttpRequest) -> HttpResponseBase:
    now, text = timezone.now(), request.GET.get("q", "").replace("\x00", "").strip()
    rows = _matching(standing.visible(access(request)), text)
    running = list(rows.filter(pk__in=targets.running())[:MOST_ENGAGED])
    over = list(rows.exclude(pk__in=targets.running())[:MOST_OVER])
    everything = access(request).everything
    context = {
        "text": text,
        "lines": [*_lines(running, now), *_lines(over, now)],
        "running": len(running),
        "is_cut": len(over) == MOST_OVER,
        "found": _found(access(request).tenants, text, now) if text else (),
        "inactive": _inactive(access(request).tenants),
        "drill": drilled.finding(now) if everything else None,
        "fields": standing.SPOKEN,
    }
    question = "What is stopped, by whom, is it really stopped, and will it work next time?"
    return page.show(request, "switches.html", context, title="Switches", question=question,
                     tab="switches")  # fmt: skip


@require_safe
@screen()
def switch(request: HttpRequest, pk: int) -> HttpResponseBase:
    found = get_object_or_404(standing.visible(access(request)), pk=pk)
    if request.GET.get("format") == "csv":
        return _csv(request, found)
    context = {**_status(found), "events": found.events.order_by("-at", "-id")[:MOST_EVENTS]}
    return page.show(request, "switch.html", context, title=str(context["title"]),
                     question="Is it really stopped?", tab="switches")  # fmt: skip


@require_safe
@screen()
def live(request: HttpRequest, pk: int) -> HttpResponse:
    """What of that page is asked for again and again, until the switch is over."""
    found = get_object_or_404(standing.visible(access(request)), pk=pk)
    context = {**_status(found), "access": access(request), "labels": Labels()}
    status = STOP_POLLING if context["over_at"] else 200
    return render(request, "token_allowance_dashboard/switch_live.html", context, status=status)


def _status(found: Switch) -> dict[str, Any]:
    now = timezone.now()
    over_at = standing.over_at(found, now)
    word = "stopped" if over_at is None else "not stopped any more"
    return {
        "switch": found,
        "parts": standing.named(found).items(),
        "title": f"{standing.words(found)}: {word}",
        "over_at": over_at,
        "lasted": (over_at or now) - found.engaged_at,
        "measured": standing.measured(found, now),
        "moment": now,
    }


def _csv(request: HttpRequest, found: Switch) -> HttpResponseBase:
    if not access(request).may(EXPORT):
        raise PermissionDenied
    events = found.events.order_by("at", "id").iterator()
    rows = ([_cell(event, name) for name in COLUMNS] for event in events)
    return exports.table(f"switch-{found.pk}", COLUMNS, rows)


def _cell(event: SwitchEvent, name: str) -> object:
    value = getattr(event, name)
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return "" if value is None else value


def _lines(rows: list[Switch], now: dt.datetime) -> list[Line]:
    refused, drills = standing.refused(rows, now), standing.drills(rows)
    return [
        Line(
            switch=row,
            parts=tuple(standing.named(row).items()),
            over_at=standing.over_at(row, now),
            refused=refused[row.pk],
            drill=drills.get(row.pk),
        )
        for row in rows
    ]


def _matching(rows: Any, text: str) -> Any:
    rows = rows.order_by("-engaged_at", "-id")
    if not text:
        return rows
    where = Q()
    for name in (*standing.SPOKEN, "reason", "by"):
        where |= Q(**{f"{name}__icontains": text})
    return rows.filter(where)


def _found(tenants: frozenset[str] | None, text: str, now: dt.datetime) -> list[Found]:
    """Whatever has spent of late and is called like this; and what was typed itself."""
    since = now - dt.timedelta(days=SEARCHED_DAYS)
    rows = HourlySpend.objects.filter(Scope({}, tenants).where(), starts_at__gte=since).order_by()
    found = []
    for name in standing.SPOKEN:
        names = (name,) if tenants is None or name == "tenant" else (name, "tenant")
        seen = rows.filter(**{f"{name}__icontains": text}).values_list(*names).distinct()
        found += [
            Found(tuple(zip(names, values, strict=True)))
            for values in seen.order_by(*names)[:MOST_FOUND]
        ]
    if tenants is None:
        typed = [Found(((name, text),)) for name in standing.SPOKEN]
    else:
        typed = [Found((("tenant", text),))] if text in tenants else []
    return [*found, *(one for one in typed if one not in found)]


def _inactive(tenants: frozenset[str] | None) -> list[str]:
    """Tenants that are stopped without a switch."""
    rows = Tenant.objects.filter(is_active=False)
    if tenants is not None:
        rows = rows.filter(key__in=tenants)
    return list(rows.order_by("key").values_list("key", flat=True)[:MOST_FOUND])
