"""How a switch stands: what it names, whether it stops calls now, and what was measured of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_

from django.db.models import Min, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from token_allowance import keys, money, policy
from token_allowance.exceptions import SwitchEngaged
from token_allowance.management import traffic
from token_allowance.models import Drill, Refusal, Reservation, Switch
from token_allowance.stops import ALL_PERCENT
from token_allowance.switches import NAMES, Target
from token_allowance_dashboard.access import Access
from token_allowance_dashboard.spending import Scope

SPOKEN = ("feature", "tenant", "user", "model")  # in this order people say it
FLIGHT = dt.timedelta(hours=1)  # no call is looked for that began longer before the stop
RECENT = dt.timedelta(minutes=15)  # and that hour: what of the ledger shows who is still admitted
LATELY = dt.timedelta(minutes=5)
MINUTE = dt.timedelta(minutes=1)
DRILLS_LOOKED_AT = 200

Targeted = Target | Switch


@dataclass(frozen=True, slots=True)
class Measured:
    """What one switch did. Lengths from the moment it was engaged; None: there was no such call."""

    first_refusal: dt.timedelta | None
    last_admission: dt.timedelta | None
    refused: int
    refused_a_minute: int  # in the last five, or since it was engaged
    in_flight_then: int
    in_flight: int
    reserved: str


def named(of: Targeted) -> dict[str, str]:
    return {name: value for name in SPOKEN if (value := getattr(of, name))}


def words(of: Targeted) -> str:
    return ", ".join(f"{name} {value}" for name, value in named(of).items()) or "everything"


def scope(of: Targeted, tenants: frozenset[str] | None = None) -> Scope:
    """Its calls, by the names that the ledger has for them."""
    values = named(of)
    if "model" in values:
        values["model"] = policy.confirmed().model(values["model"])
    return Scope(values, tenants)


def key(of: Targeted) -> str:
    """What the refusals of it are counted under."""
    values = scope(of).named
    return keys.scope(tuple((name, values[name]) for name in NAMES if name in values))


def visible(access: Access) -> QuerySet[Switch]:
    """The switches that this person may see: without a tenant, only who sees everything."""
    if access.tenants is None:
        return Switch.objects.all()
    return Switch.objects.filter(tenant__in=access.tenants)


def over_at(switch: Switch, now: dt.datetime) -> dt.datetime | None:
    """Since when it stops nothing any more; None while it does."""
    if switch.released_at is not None:
        return switch.released_at
    return switch.ends_at if switch.ends_at is not None and switch.ends_at <= now else None


def refused(switches: Iterable[Switch], now: dt.datetime) -> dict[int, int]:
    """How many calls each of them has refused while it was engaged: one query for all."""
    mine = {f"n{switch.pk}": _refusals(switch, now) for switch in switches}
    if not mine:
        return {}
    rows = Refusal.objects.filter(reduce(or_, mine.values()), code=SwitchEngaged.code).order_by()
    found = rows.aggregate(
        **{name: Coalesce(Sum("calls", filter=where), 0) for name, where in mine.items()}
    )
    return {int(name[1:]): calls for name, calls in found.items()}


def drills(switches: Iterable[Switch]) -> dict[int, Drill]:
    """The last drill of each one's target; none of a target that no drill can have."""
    targets = {(one.tenant, one.feature): one for one in switches if not one.user and not one.model}
    rows = Drill.objects.filter(
        tenant__in=[tenant for tenant, _ in targets], feature__in=[f for _, f in targets]
    )
    found: dict[tuple[str, str], Drill] = {}
    for drill in rows.order_by("-started_at", "-id")[:DRILLS_LOOKED_AT]:
        found.setdefault((drill.tenant, drill.feature), drill)
    return {
        one.pk: found[one.tenant, one.feature]
        for one in switches
        if not one.user and not one.model and (one.tenant, one.feature) in found
    }


def measured(switch: Switch, now: dt.datetime) -> Measured:
    """By the refusals that were counted and by the ledger; neither is more than seconds behind."""
    begun, end = switch.engaged_at, over_at(switch, now) or now
    counted = Refusal.objects.filter(_refusals(switch, now), code=SwitchEngaged.code)
    lately = max(begun, end - LATELY)
    found = counted.order_by().aggregate(
        total=Coalesce(Sum("calls"), 0),
        lately=Coalesce(Sum("calls", filter=Q(starts_at__gte=_minute(lately))), 0),
        first=Min("first_at", filter=Q(first_at__gte=begun)),
    )
    rows = Reservation.objects.filter(scope(switch).where()).order_by()
    last = None
    if switch.percent == ALL_PERCENT:  # of a part, the others are admitted as they should
        looked_at = Q(created_at__lt=begun + FLIGHT) | Q(created_at__gte=end - RECENT)
        later = rows.filter(looked_at, created_at__gt=begun, created_at__lt=end)
        later = later.order_by("-created_at")
        last = later.values_list("created_at", flat=True).first()
    before = rows.filter(created_at__gte=begun - FLIGHT, created_at__lte=begun)
    flying = traffic.in_flight(Target(**{n: getattr(switch, n) for n in NAMES}), switch.percent)
    return Measured(
        first_refusal=found["first"] and found["first"] - begun,
        last_admission=None if last is None else last - begun,
        refused=found["total"],
        refused_a_minute=found["lately"] // max(1, round((end - lately) / MINUTE)),
        in_flight_then=before.filter(Q(state="reserved") | Q(settled_at__gt=begun)).count(),
        in_flight=flying.calls,
        reserved=money.format_usd(flying.micros),
    )


def _refusals(switch: Switch, now: dt.datetime) -> Q:
    end = over_at(switch, now) or now
    since = _minute(switch.engaged_at)
    return Q(
        key=key(switch), starts_at__gte=since, starts_at__lte=end, last_at__gte=switch.engaged_at
    )


def _minute(moment: dt.datetime) -> dt.datetime:
    return moment.replace(second=0, microsecond=0)
