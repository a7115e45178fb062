"""Bringing the stored price rows up to date by adding dated rows. No row is ever changed."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal

from django.db import transaction

from token_allowance.models import Price
from token_allowance.prices.bundled import SOURCE
from token_allowance.pricing import RATES, ModelPrice

COLUMNS = ("provider", "model", "service_tier", "effective_from", "min_input_tokens", *RATES)
# A correction of a row that is dated in the future starts just after it; it is found by looking a
# moment later than it starts.
STEP, MOMENT = dt.timedelta(microseconds=1), dt.timedelta(milliseconds=1)
BATCH = 1000

Key = tuple[str, str, str]  # provider, model, service tier
Rates = tuple[Decimal | None, ...]
Rows = dict[int, Rates]  # by the least total input: all thresholds of one date
Schedule = dict[dt.datetime | None, Rows]  # by the date from which they apply; None is always


@dataclass(slots=True)
class Plan:
    """The rows to add, and for each provider, model and service tier what they mean."""

    rows: list[Price] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    same: int = 0


def plan(prices: Iterable[ModelPrice], now: dt.datetime, only: Collection[str] = ()) -> Plan:
    """What has to be added so that from ``now`` on the stored prices say what ``prices`` say.

    A model seen for the first time gets all its dates, the past ones too. Of a known one the past
    stays as it is; a change starts now, with every threshold of that model and service tier,
    because the newest date wins with all its rows (case C25).
    """
    found = Plan()
    stored = _stored(only)
    for key, wanted in sorted(_wanted(prices).items()):
        known = stored.get(key, {})
        added = _added(wanted, known, now) if known else wanted
        name = " ".join(key).strip()
        if not known:
            found.new.append(f"{name}: {_text(_at(wanted, now) or next(iter(wanted.values())))}")
        elif added:
            found.changed += [f"{name}: {line}" for line in _changes(added, known)]
        else:
            found.same += 1
        found.rows += _price_rows(key, added)
    return found


def write(rows: list[Price]) -> None:
    """Insert the rows; those that another process has just inserted are left out."""
    with transaction.atomic():
        Price.objects.bulk_create(rows, batch_size=BATCH, ignore_conflicts=True)


def _wanted(prices: Iterable[ModelPrice]) -> dict[Key, Schedule]:
    schedules: dict[Key, Schedule] = defaultdict(dict)
    for price in prices:
        schedule = schedules[price.provider, price.model, price.service_tier]
        rates = tuple(getattr(price, name) for name in RATES)
        schedule.setdefault(price.effective_from, {})[price.min_input_tokens] = rates
    return schedules


def _stored(only: Collection[str]) -> dict[Key, Schedule]:
    schedules: dict[Key, Schedule] = defaultdict(dict)
    found = Price.objects.filter(source=SOURCE)
    if only:
        found = found.filter(provider__in=only)
    for row in found.values_list(*COLUMNS):
        provider, model, tier, date, least, *rates = row
        schedules[provider, model, tier].setdefault(date, {})[least] = tuple(rates)
    return schedules


def _added(wanted: Schedule, known: Schedule, now: dt.datetime) -> Schedule:
    added: Schedule = {}
    dates = {date for date in {*wanted, *known} if date is not None and date > now}
    for start in [now, *sorted(dates)]:
        then = start + MOMENT
        rows = _at(wanted, then)
        if rows and rows != _at({**known, **added}, then):
            while start in known or start in added:
                start += STEP
            added[start] = rows
    return added


def _at(schedule: Schedule, moment: dt.datetime) -> Rows | None:
    """The rows in force: those of the newest date that has come."""
    past = [date for date in schedule if date is not None and date <= moment]
    return schedule[max(past)] if past else schedule.get(None)


def _changes(added: Schedule, known: Schedule) -> Iterator[str]:
    for date, rows in added.items():
        if date is not None:
            before = _at(known, date)
            old = f"{_text(before)} → " if before else ""
            others = "".join(f", {change}" for change in _others(before or {}, rows))
            yield f"{old}{_text(rows)}{others} from {date:%Y-%m-%d %H:%M} UTC"


def _others(before: Rows, after: Rows) -> Iterator[str]:
    """What changed beside the prices of input and output, at the lowest threshold."""
    nothing = (None,) * len(RATES)
    old, new = before.get(0, nothing), after.get(0, nothing)
    for name, was, is_now in list(zip(RATES, old, new, strict=True))[2:]:
        if was != is_now:
            yield f"{name} {_known(was)} → {_known(is_now)}"


def _known(rate: Decimal | None) -> str:
    return "none" if rate is None else f"${_plain(rate)}"


def _text(rows: Rows) -> str:
    parts = []
    for least, (read, written, *_) in sorted(rows.items()):
        above = f" with {least:,} input tokens or more" if least else ""
        parts.append(f"${_plain(read)} in, ${_plain(written)} out{above}")
    return "; ".join(parts)


def _plain(rate: Decimal | None) -> str:
    whole, _, decimals = f"{(rate or Decimal(0)).normalize():f}".partition(".")
    return f"{whole}.{decimals.ljust(2, '0')}"


def _price_rows(key: Key, schedule: Schedule) -> Iterator[Price]:
    provider, model, tier = key
    for date, rows in schedule.items():
        for least, rates in sorted(rows.items()):
            yield Price(
                provider=provider,
                model=model,
                service_tier=tier,
                effective_from=date,
                min_input_tokens=least,
                source=SOURCE,
                **dict(zip(RATES, rates, strict=True)),
            )
