"""Spending now: what is spending right now, and can I stop just that?"""

from __future__ import annotations

import datetime as dt
import zlib
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.db.models import Count, Max, Min, Q, QuerySet, Sum
from django.db.models.functions import Coalesce, TruncMinute
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from token_allowance.labels import Labels
from token_allowance.models import HourlySpend, Refusal, Reservation, SwitchEvent
from token_allowance.money import format_usd
from token_allowance_dashboard import charts, page, periods
from token_allowance_dashboard.access import access, screen
from token_allowance_dashboard.spending import Scope

BY = ("feature", "model", "tenant")
MINUTES = (5, 15, 60)
DEFAULT_MINUTES = 15
USUAL_DAYS = 7
BARS = 60
MOST_SHOWN = 50
MOST_RUNNING = 5
LONG = dt.timedelta(seconds=60)

Keys = tuple[str, ...]


@dataclass(slots=True)
class Spender:
    """One feature, model and tenant. Money in micro-dollars."""

    keys: Keys
    micros: int = 0
    calls: int = 0
    tokens: int = 0
    usual_micros: int = 0  # in as many minutes at this time of the day
    in_flight: int = 0
    reserved_micros: int = 0
    refused: int = 0
    users: int = 0

    @property
    def id(self) -> str:
        """The same at each refresh, so that focus stays where it is."""
        return f"row-{zlib.crc32('|'.join(self.keys).encode()):08x}"

    @property
    def feature(self) -> str:
        return self.keys[0]

    @property
    def model(self) -> str:
        return self.keys[1]

    @property
    def tenant(self) -> str:
        return self.keys[2]

    @property
    def times_usual(self) -> str:
        """How many times the usual; empty while there is no usual to compare with."""
        if not self.usual_micros:
            return ""
        tenths = 10 * self.micros // self.usual_micros
        return f"×{tenths // 10}.{tenths % 10}"

    @property
    def tokens_per_call(self) -> int:
        return self.tokens // self.calls if self.calls else 0

    @property
    def query(self) -> str:
        """The row's scope, for the pages that stop it or limit it."""
        return urlencode({name: v for name, v in zip(BY, self.keys, strict=True) if v})


@require_safe
@screen()
def now(request: HttpRequest) -> HttpResponseBase:
    question = "What is spending right now, and can I stop just that?"
    context = {**_table(request), **_minutes(request)}
    return page.show(request, "now.html", context, title="Spending now", question=question,
                     tab="now")  # fmt: skip


@require_safe
@screen()
def table(request: HttpRequest) -> HttpResponse:
    """What of the page is asked for again and again."""
    context = {**_table(request), "access": access(request), "labels": Labels()}
    return render(request, "token_allowance_dashboard/now_table.html", context)


def _table(request: HttpRequest) -> dict[str, Any]:
    moment = timezone.now()
    chosen = request.GET.get("minutes", "")
    minutes = int(chosen) if chosen.isdecimal() and int(chosen) in MINUTES else DEFAULT_MINUTES
    named = {n: v.replace("\x00", "") for n in (*BY, "user") if (v := request.GET.get(n))}
    scope = Scope(named, access(request).tenants)
    spenders = _spenders(scope, moment, minutes)
    last = None
    if not spenders:
        last = Reservation.objects.filter(scope.where()).order_by("-created_at").first()
    return {
        "minutes": minutes,
        "choices": MINUTES,
        "named": named,
        "spenders": spenders[:MOST_SHOWN],
        "number": len(spenders),
        "most": max((one.micros for one in spenders), default=0),
        "total_micros": sum(one.micros for one in spenders),
        "reserved_micros": sum(one.reserved_micros for one in spenders),
        "in_flight": sum(one.in_flight for one in spenders),
        "refused": sum(one.refused for one in spenders),
        "per_minute": sum(one.micros for one in spenders) // minutes,
        "running": _running(scope, moment),
        "last": last,
        "moment": moment,
        "zone": periods.zone_of(request.GET),
    }


def _spenders(scope: Scope, moment: dt.datetime, minutes: int) -> list[Spender]:
    """Whoever has spent, holds something or was refused in these minutes; the dearest first."""
    since = moment - dt.timedelta(minutes=minutes)
    found: dict[Keys, Spender] = {}

    def of(row: dict[str, Any]) -> Spender:
        keys = tuple(row[name] for name in BY)
        return found.setdefault(keys, Spender(keys))

    rows = Reservation.objects.filter(scope.where()).order_by()
    for row in (
        rows.filter(created_at__gte=since)
        .exclude(state="released")
        .values(*BY)
        .annotate(
            micros=Coalesce(Sum("cost_micros"), 0),
            calls=Count("id"),
            tokens=Coalesce(Sum("input_tokens") + Sum("output_tokens"), 0),
            users=Count("user", distinct=True),
        )
    ):
        one = of(row)
        one.micros, one.calls = row["micros"], row["calls"]
        one.tokens, one.users = row["tokens"], row["users"]
    for row in (
        rows.filter(state="reserved")
        .values(*BY)
        .annotate(calls=Count("id"), micros=Coalesce(Sum("reserved_micros"), 0))
    ):
        one = of(row)
        one.in_flight, one.reserved_micros = row["calls"], row["micros"]
    for row in _refused(scope, since).values(*BY).annotate(calls=Sum("calls")):
        of(row).refused = row["calls"]
    for row in _usual(scope, moment, minutes):
        keys = tuple(row[name] for name in BY)
        if keys in found:
            usual = row["micros"] * minutes // (USUAL_DAYS * _quarters(minutes) * 15)
            found[keys].usual_micros = usual
    return sorted(found.values(), key=lambda one: (-one.micros, -one.reserved_micros, one.keys))


def _refused(scope: Scope, since: dt.datetime) -> QuerySet[Any]:
    whole = since.replace(second=0, microsecond=0)
    return Refusal.objects.filter(scope.where(), starts_at__gte=whole).order_by()


def _quarters(minutes: int) -> int:
    return max(1, -(-minutes // 15))


def _usual(scope: Scope, moment: dt.datetime, minutes: int) -> QuerySet[Any]:
    """The same quarters of an hour of the last seven days, by the roll-ups."""
    same = Q()
    for day in range(1, USUAL_DAYS + 1):
        end = moment - dt.timedelta(days=day)
        start = end - dt.timedelta(minutes=15 * _quarters(minutes))
        same |= Q(starts_at__gt=start, starts_at__lte=end)
    rows = HourlySpend.objects.filter(same, scope.where()).order_by().values(*BY)
    usual: QuerySet[Any] = rows.annotate(micros=Sum("cost_micros"))
    return usual


def _running(scope: Scope, moment: dt.datetime) -> list[Reservation]:
    """The calls that have been in flight for longest."""
    rows = Reservation.objects.filter(scope.where(), state="reserved")
    found = list(rows.order_by("created_at")[:MOST_RUNNING])
    for row in found:
        row.age = moment - row.created_at  # type: ignore[attr-defined]
        row.is_long = row.age > LONG  # type: ignore[attr-defined]
    return found


def _minutes(request: HttpRequest) -> dict[str, Any]:
    """Dollars a minute of the last hour, with what was stopped and resumed meanwhile."""
    moment, zone = timezone.now(), periods.zone_of(request.GET)
    since = moment.replace(second=0, microsecond=0) - dt.timedelta(minutes=BARS - 1)
    scope = Scope({}, access(request).tenants)
    rows = Reservation.objects.filter(scope.where(), created_at__gte=since).order_by()
    spent = {
        row["minute"]: row["micros"]
        for row in rows.annotate(minute=TruncMinute("created_at", tzinfo=dt.UTC))
        .values("minute")
        .annotate(micros=Coalesce(Sum("cost_micros"), 0))
    }
    starts = [since + dt.timedelta(minutes=n) for n in range(BARS)]
    labels = [f"{start.astimezone(zone):%H:%M}" for start in starts]
    values = [spent.get(start, 0) for start in starts]
    chart = charts.stacked(
        "minutes", "Spent each minute", labels, [("spent", values)], last_is_open=True
    )
    flips = SwitchEvent.objects.filter(at__gte=since).select_related("switch").order_by("-at")
    if scope.tenants is not None:
        flips = flips.filter(switch__tenant__in=scope.tenants)
    return {"chart": chart, "flips": flips[:MOST_RUNNING]}


def blast_radius(
    scope: Scope, moment: dt.datetime, minutes: int = DEFAULT_MINUTES
) -> dict[str, Any]:
    """What calls of this scope were in the last minutes: for a page that is about to stop them."""
    rows = Reservation.objects.filter(
        scope.where(), created_at__gte=moment - dt.timedelta(minutes=minutes)
    ).exclude(state="released")
    found = rows.aggregate(
        calls=Count("id"),
        tenants=Count("tenant", distinct=True, filter=~Q(tenant="")),
        users=Count("user", distinct=True, filter=~Q(user="")),
        micros=Coalesce(Sum("cost_micros"), 0),
        first=Min("created_at"),
        last=Max("created_at"),
    )
    flying = Reservation.objects.filter(scope.where(), state="reserved").aggregate(
        calls=Count("id"), micros=Coalesce(Sum("reserved_micros"), 0)
    )
    return {
        **found,
        "minutes": minutes,
        "micros_a_minute": found["micros"] // minutes,
        "in_flight": flying["calls"],
        "reserved": format_usd(flying["micros"]),
    }
