"""Limits as values: who a call is charged to, which limits apply, and the budgets they open."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from zoneinfo import ZoneInfo

from token_allowance import keys, levels, rolling
from token_allowance.increases import Increase
from token_allowance.money import MAX_MICROS
from token_allowance.windows import ALWAYS, Span, Window, span

EACH = "*"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
STATED = ("tenant", "user", "session", "feature")
DIMENSIONS = (*STATED, "model")
RUN = "run_path"
IDENTIFIER_LENGTH = 200


class Unit(StrEnum):
    COST = "cost"
    TOKENS = "tokens"
    CALLS = "calls"


@dataclass(frozen=True, slots=True)
class Amounts:
    """What one call needs, or used, in each unit. ``cost_micros`` None: no price is known."""

    cost_micros: int | None
    tokens: int
    calls: int = 1

    def of(self, unit: Unit) -> int:
        if unit is Unit.COST:
            return self.cost_micros or 0
        return self.tokens if unit is Unit.TOKENS else self.calls


NOTHING = Amounts(cost_micros=0, tokens=0, calls=0)


def checked_identifier(name: str, value: object) -> str:
    """Return the value as text; ValueError for what no store could keep or tell apart.

    A NUL stops a PostgreSQL batch and ``*`` would name every value at once (protocol 8).
    """
    text = str(value)
    if not text or text == EACH:
        raise ValueError(f"{name}={text!r} is not a value; leave it out instead")
    if len(text) > IDENTIFIER_LENGTH or len(text.encode("utf-8", "replace")) > IDENTIFIER_LENGTH:
        raise ValueError(f"{name} is longer than {IDENTIFIER_LENGTH} bytes")
    if "\x00" in text or not text.isprintable():
        raise ValueError(f"{name} holds a control character")
    return text


@dataclass(frozen=True, slots=True)
class Attribution:
    """Who and what a call is charged to. ``""`` means: not known."""

    tenant: str = ""
    user: str = ""
    session: str = ""
    feature: str = ""

    def merged(self, over: Mapping[str, object]) -> Attribution:
        """This attribution with every value of ``over`` that is given (not None) put over it."""
        given = [(name, over.get(name)) for name in STATED]
        known = {n: checked_identifier(n, value) for n, value in given if value not in (None, "")}
        return Attribution(**{**self.as_dict(), **known}) if known else self

    def as_dict(self) -> dict[str, str]:
        return dict(zip(STATED, (self.tenant, self.user, self.session, self.feature), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A rule. Each dimension is ``""`` (not looked at), ``"*"`` (each value apart) or a value."""

    id: int | None = None
    tenant: str = ""
    user: str = ""
    session: str = ""
    feature: str = ""
    model: str = ""
    plan: str = ""
    window: Window = Window.DAY
    rolling_seconds: int = 0  # the length of a rolling window
    anchor_day: int = 1
    time_zone: str = "UTC"
    unit: Unit = Unit.COST
    amount: int = 0
    observe: bool = False
    notify_at: tuple[int, ...] = levels.NOTIFY_AT
    degrade_at: int | None = levels.DEGRADE_AT
    hard_stop_percent: int = levels.HARD_STOP
    tracked_since: int = 0  # microseconds since 1970: from when on its budgets are counted
    expires_at: dt.datetime | None = None
    increases: tuple[Increase, ...] = ()

    @property
    def shape(self) -> tuple[str, ...]:
        return tuple(name for name in DIMENSIONS if getattr(self, name))

    @property
    def exact(self) -> frozenset[str]:
        """Dimensions named by value; a plan, like a tenant's own name, is narrower than each."""
        names = {name for name in DIMENSIONS if getattr(self, name) not in ("", EACH)}
        if self.plan or "tenant" in names:
            names.add("plan")
        return frozenset(names)

    @property
    def scope(self) -> str:
        """The word for messages: whose budget it is, and of what, or ``global``."""
        people = [name for name in ("tenant", "user", "session") if getattr(self, name)]
        subjects = [name for name in ("feature", "model") if getattr(self, name)]
        return " ".join(people[-1:] + subjects) or "global"

    @property
    def adjective(self) -> str:
        """The words before "budget" in messages: "daily", "rolling 24-hour"."""
        if self.window is not Window.ROLLING:
            return self.window.adjective
        return f"{self.window.adjective} {rolling.length(self.rolling_seconds)}"

    @property
    def stop_amount(self) -> int:
        """Calls are admitted up to this: ``amount`` is what is shown, and may be passed."""
        return levels.part(self.amount, self.hard_stop_percent)

    @property
    def degrade_amount(self) -> int | None:
        """The least ``used`` at which the cheaper plan is served; None: it never is."""
        at = self.degrade_at
        return None if at is None else levels.reached_from(self.amount, at)

    def raised(self, values: Mapping[str, str], now: dt.datetime) -> Limit:
        """This limit with the increases that its budget of these values has now."""
        if not self.increases:
            return self
        extra = sum(i.amount for i in self.increases if i.adds_to(values, now))
        return replace(self, amount=min(MAX_MICROS, self.amount + extra), increases=())

    def misses(self, values: Mapping[str, str], plan: str) -> tuple[str, ...] | None:
        """Dimensions the call has no value for; ``()`` is a match, None is: never matches."""
        missing = []
        for name in self.shape:
            rule, value = getattr(self, name), values.get(name, "")
            if not value:
                missing.append(name)
            elif rule not in (EACH, value):
                return None
        if self.plan and self.plan != plan and values.get("tenant"):
            return None
        return tuple(missing)

    def overrides(self, other: Limit) -> bool:
        alike = self.window == other.window and self.unit == other.unit  # cheap, and mostly false
        alike = alike and self.rolling_seconds == other.rolling_seconds
        return alike and self.shape == other.shape and self.exact > other.exact


@dataclass(frozen=True, slots=True)
class Budget:
    """One limit applied to one set of values in one window.

    ``key`` names the counter. It is made of shape, values, window, zone, start and unit, never of
    the limit's id, so a limit that is replaced goes on counting where the old one stopped.
    """

    key: str
    limit: Limit
    values: tuple[tuple[str, str], ...]
    window: Span
    since: int  # microseconds since 1970: from when on this budget has been counted
    enforced: bool = True
    untouched: bool = False  # nothing was spent from it uncounted: a missing counter is zero
    slice: int | None = None  # of a rolling window: the one that a call of now is counted in

    @property
    def held_in(self) -> str:
        """The key of the counter that moves: one slice's, where the window rolls."""
        return self.key if self.slice is None else keys.of_slice(self.key, self.slice)

    def at(self, moment: dt.datetime) -> Budget:
        """The same budget as a call of that moment sees it."""
        return replace(
            open_budget(self.limit, dict(self.values), moment, enforced=self.enforced),
            since=self.since,
        )

    @property
    def is_cap(self) -> bool:
        """Is it the cap of one request or job, and no limit of an operator's?"""
        return bool(self.values) and self.values[0][0] == RUN


def microseconds(moment: dt.datetime) -> int:
    """Microseconds since 1970: how a moment is compared with a policy version."""
    return (moment - EPOCH) // dt.timedelta(microseconds=1)


@lru_cache(maxsize=512)
def zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def apply(
    limits: Iterable[Limit],
    attribution: Attribution,
    *,
    model: str,
    plan: str,
    now: dt.datetime,
) -> tuple[list[Budget], frozenset[str]]:
    """The budgets a call is counted in, in lock order, and the dimensions some limit misses on it.

    All matching limits that no narrower one overrides apply (DESIGN.md section 3). One that is
    overridden is still counted, so that its budget is right when the narrower limit goes away
    (protocol 3); mostly both share one counter.
    """
    values = {**attribution.as_dict(), "model": model}
    matching, missing = [], set[str]()
    for limit in limits:
        if limit.expires_at is not None and limit.expires_at <= now:
            continue
        misses = limit.misses(values, plan)
        if misses == ():
            matching.append(limit)
        elif misses:
            missing.update(misses)
    budgets: dict[str, Budget] = {}
    for limit in matching:
        enforced = not any(other.overrides(limit) for other in matching if other is not limit)
        budget = open_budget(limit, values, now, enforced=enforced)
        shared = budgets.get(budget.key)
        budgets[budget.key] = budget if shared is None else _stricter(budget, shared)
    return [budgets[key] for key in sorted(budgets)], frozenset(missing)


def _stricter(one: Budget, other: Budget) -> Budget:
    """Two limits that share a counter: the one that refuses first, counted since the earlier."""
    strict = min(one, other, key=_strictness)
    return replace(strict, since=min(one.since, other.since))


def _strictness(budget: Budget) -> tuple[bool, bool, int, int]:
    limit = budget.limit
    degrades = limit.stop_amount if limit.degrade_amount is None else limit.degrade_amount
    return not budget.enforced, limit.observe, limit.stop_amount, degrades


def open_budget(
    limit: Limit, values: Mapping[str, str], now: dt.datetime, *, enforced: bool = True
) -> Budget:
    """The budget of ``limit`` for these values in the window that holds ``now``."""
    own = tuple((name, values[name]) for name in limit.shape)
    limit = limit.raised(dict(own), now)
    number: int | None = None
    if limit.window is Window.ROLLING:
        number = rolling.slice_at(limit.rolling_seconds, now)
        window = rolling.counted(limit.rolling_seconds, number)
    else:
        window = span(limit.window, now, zone(limit.time_zone), limit.anchor_day)
    key = counter_key(limit, own, window)
    return Budget(key, limit, own, window, limit.tracked_since, enforced, slice=number)


def counter_key(limit: Limit, values: tuple[tuple[str, str], ...], window: Span) -> str:
    """The key of a budget's counter: made of all that decides what is counted, and no more."""
    start, edges = window.start, f"{limit.window}/{limit.anchor_day}/{limit.time_zone}"
    if limit.window is Window.ROLLING:  # the same in every zone, and it never starts again
        start, edges = None, f"{limit.window}/{limit.rolling_seconds}/UTC"
    return f"{9 - len(values)}|{keys.scope(values)}|{limit.unit}|{edges}|{keys.written(start)}"


def cap_budget(
    path: str, unit: Unit, amount: int, *, since: int, untouched: bool = False
) -> Budget:
    """A cap that several processes share: of the run with this path and of every run inside it."""
    limit = Limit(
        unit=unit, amount=amount, window=Window.TOTAL, tracked_since=since, degrade_at=None
    )
    key = f"0|{RUN}={path}|{unit}|{limit.window}/1/UTC|-"
    return Budget(key, limit, ((RUN, path),), ALWAYS, since, untouched=untouched)
