"""Weeks of model calls as a product has them, from a seed: days, nights, weekends, noise, jobs.

Busy by day and quiet by night as clocks in its zone show, a dip at weekends, hours and days that
are better or worse than others, a few large customers and many small ones, long answers now and
then, an hourly and a nightly job, a customer who works in bursts, and a feature of rare dear calls.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from itertools import accumulate
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from token_allowance import entries
from token_allowance.alerts.quarters import EPOCH, start
from token_allowance.alerts.sums import NONE, Cell, Sums, Target
from token_allowance.models import HourlySpend, Reservation

UNTIL = dt.datetime(2026, 4, 6, tzinfo=dt.UTC)
ZONE = "Europe/Berlin"
BUSY = dt.datetime(2026, 4, 1, 9, 0, tzinfo=dt.UTC)
NIGHT = dt.datetime(2026, 4, 2, 1, 30, tzinfo=dt.UTC)
SATURDAY = dt.datetime(2026, 4, 4, 13, 40, tzinfo=dt.UTC)
MINUTES_OF_WEEK = 7 * 24 * 60
#: Feature: model, calls a minute at the busiest time, tokens of a call, their spread, and
#: micro-dollars a token.
FEATURES = {
    "chat": ("gpt-5-mini", 5.0, 1_500, 0.8, 10),
    "agent": ("claude-sonnet", 2.5, 9_000, 0.9, 15),
    "summarise": ("gpt-5-mini", 1.0, 6_000, 0.6, 10),
    "search": ("gpt-5-nano", 2.0, 700, 0.4, 2),
    "report": ("claude-opus", 0.02, 120_000, 0.7, 25),
}
JOB = ("digest", "gpt-5-mini", 3_000, 0.4, 10)
TENANTS = [f"tenant-{number:02}" for number in range(1, 15)]
WEIGHTS = [1 / number for number in range(1, 15)]
BURSTY = "tenant-14"
USERS = 8
HOURS = (
    0.06, 0.04, 0.03, 0.03, 0.04, 0.08, 0.18, 0.38, 0.68, 0.9, 1.0, 0.97,
    0.8, 0.92, 1.0, 0.96, 0.88, 0.72, 0.55, 0.45, 0.38, 0.28, 0.18, 0.1,
)  # fmt: skip


class Call(NamedTuple):
    minute: int  # since 1970
    tenant: str
    user: str
    feature: str
    model: str
    tokens: int
    micros: int


class Traffic:
    """So many weeks before ``until``, the same for the same seed."""

    def __init__(self, seed: int, until: dt.datetime, weeks: int = 5, zone: str = "UTC") -> None:
        self.random = random.Random(seed)
        self.zone = ZoneInfo(zone)
        self.until = (until - EPOCH) // dt.timedelta(minutes=1)
        self.since = self.until - weeks * MINUTES_OF_WEEK
        self.calls = list(self._calls())
        self._minutes = [call.minute for call in self.calls]

    def between(self, since: int, until: int) -> list[Call]:
        """The calls of these minutes."""
        return self.calls[bisect_left(self._minutes, since) : bisect_left(self._minutes, until)]

    @cached_property
    def by_quarter(self) -> dict[int, dict[Cell, Sums]]:
        found: dict[int, list[Call]] = defaultdict(list)
        for call in self.calls:
            found[call.minute // 15].append(call)
        return {quarter: cells(calls) for quarter, calls in found.items()}

    @cached_property
    def series(self) -> dict[Target, dict[int, Sums]]:
        """Quarters of everything, of each tenant and feature, and of each feature of a tenant."""
        found: dict[Target, dict[int, Sums]] = defaultdict(dict)
        for quarter, parts in self.by_quarter.items():
            for (tenant, feature), sums in parts.items():
                for target in (
                    Target(), Target(tenant), Target("", feature), Target(tenant, feature),
                ):  # fmt: skip
                    found[target][quarter] = found[target].get(quarter, NONE) + sums
        return found

    def _calls(self) -> Iterator[Call]:
        good_days = dict.fromkeys(TENANTS, 1.0)
        for minute in range(self.since, self.until):
            now = (EPOCH + dt.timedelta(minutes=minute)).astimezone(self.zone)
            if minute % 60 == 0 or minute == self.since:
                if now.hour == 0 or minute == self.since:
                    good_days = {t: self.random.lognormvariate(0, 0.3) for t in TENANTS}
                    tenants = list(accumulate(
                        weight * good_days[t] for t, weight in zip(TENANTS, WEIGHTS, strict=True)
                    ))  # fmt: skip
                busy = self.random.lognormvariate(0, 0.2)
                names = list(FEATURES)
                rates = [FEATURES[n][1] * self.random.lognormvariate(0, 0.2) for n in names]
                features = list(accumulate(rates))
                bursts = {self.random.randrange(60) // 10} if self.random.random() < 0.15 else ()
            level = busy * shape(now)
            for _ in range(poisson(self.random, level * features[-1])):
                feature = self.random.choices(names, cum_weights=features)[0]
                tenant = self.random.choices(TENANTS, cum_weights=tenants)[0]
                yield self._call(minute, tenant, feature)
            if now.minute // 10 in bursts and 7 <= now.hour < 22:
                for _ in range(poisson(self.random, 3)):
                    yield self._call(minute, BURSTY, "agent")
            if now.minute < 3 or (now.hour == 2 and now.minute < 30):
                for _ in range(poisson(self.random, 6 if now.hour == 2 else 20)):
                    yield self._call(minute, self.random.choice(TENANTS), JOB[0])

    def _call(self, minute: int, tenant: str, feature: str, longer: int = 1) -> Call:
        if feature in FEATURES:
            model, _, length, spread, price = FEATURES[feature]
        else:
            _, model, length, spread, price = JOB
        tokens = longer * max(1, int(self.random.lognormvariate(math.log(length), spread)))
        user = f"{tenant}-u{self.random.randint(1, USERS)}"
        return Call(minute, tenant, user, feature, model, tokens, tokens * price)

    def incident(
        self, minute: int, tenant: str, feature: str, calls: int, user: str = "", longer: int = 1
    ) -> list[Call]:
        """So many calls more in one minute, by one user if one is named."""
        self.random.seed(f"{minute} {tenant} {feature} {calls}")  # whoever else has asked
        made = (self._call(minute, tenant, feature, longer) for _ in range(calls))
        return [call._replace(user=user or call.user) for call in made]


@cache
def traffic(seed: int) -> Traffic:
    """Five weeks in Berlin; its clocks go on one week before they end."""
    return Traffic(seed, UNTIL, zone=ZONE)


def minute_of(moment: dt.datetime) -> int:
    return (moment - EPOCH) // dt.timedelta(minutes=1)


def ledger_rows(calls: Iterable[Call], **given: Any) -> list[Reservation]:
    """Finished calls as the ledger has them, spread over their minutes."""
    rows = []
    for number, call in enumerate(calls):
        began = EPOCH + dt.timedelta(minutes=call.minute, seconds=number % 60)
        ended = began + dt.timedelta(seconds=2)
        row = {
            "id": entries.new_id(), "state": "settled", "provider": "openai", "created_at": began,
            "settled_at": ended, "expires_at": began + dt.timedelta(minutes=10),
            "tenant": call.tenant, "user": call.user, "feature": call.feature,
            "model": call.model, "requested_model": call.model, "input_tokens": call.tokens,
            "cost_micros": call.micros, "cost_exact": call.micros, "reserved_micros": call.micros,
        }  # fmt: skip
        rows.append(Reservation(**row | given))
    return rows


def rollups(calls: Iterable[Call]) -> list[HourlySpend]:
    """The same calls as the roll-ups have them."""
    found: dict[tuple[int, str, str, str, str], list[Call]] = defaultdict(list)
    for c in calls:
        found[c.minute // 15, c.tenant, c.user, c.feature, c.model].append(c)
    return [
        HourlySpend(
            starts_at=start(quarter), tenant=tenant, user=user, feature=feature, model=model,
            provider="openai", calls=len(of), cost_micros=sum(c.micros for c in of),
            cost_exact=sum(c.micros for c in of), input_tokens=sum(c.tokens for c in of),
        )
        for (quarter, tenant, user, feature, model), of in found.items()
    ]  # fmt: skip


def shape(now: dt.datetime) -> float:
    """How busy it is at this time of the week, of 1 at the busiest."""
    here, after = HOURS[now.hour], HOURS[(now.hour + 1) % 24]
    level = here + (after - here) * now.minute / 60
    return level * (0.3 if now.weekday() >= 5 else 1)


def poisson(source: random.Random, mean: float) -> int:
    if mean > 30:
        return max(0, round(source.gauss(mean, math.sqrt(mean))))
    least, product, count = math.exp(-mean), source.random(), 0
    while product > least:
        product *= source.random()
        count += 1
    return count


def cells(calls: Iterable[Call]) -> dict[Cell, Sums]:
    found: dict[Cell, list[Call]] = defaultdict(list)
    for call in calls:
        found[call.tenant, call.feature].append(call)
    return {cell: sums(of) for cell, of in found.items()}


def sums(calls: list[Call]) -> Sums:
    return Sums(
        calls=len(calls),
        micros=sum(call.micros for call in calls),
        tokens=sum(call.tokens for call in calls),
        squared_micros=float(sum(call.micros**2 for call in calls)),
        squared_tokens=float(sum(call.tokens**2 for call in calls)),
    )
