"""What has to be done again and again, and how often: one list for Celery's beat and for ``jobs``.

Each job may run in any number of processes at once, and may be left out for a while. Settings may
import this, so what needs Django to be set up is imported when it is needed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass

MINUTE_SECONDS = 60.0
DAY_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Job:
    """``work(now)`` returns how much there was to do, of which ``said`` makes words.

    ``slow``: it waits for others, so it must not make the rest wait.
    """

    name: str
    every_seconds: float
    work: Callable[[dt.datetime], int]
    said: Callable[[int], str]
    slow: bool = False

    @property
    def task(self) -> str:
        """Its name in Celery."""
        return f"token_allowance.{self.name}"

    @property
    def is_daily(self) -> bool:
        """Is it so rare that a process may not live until it is due again?"""
        return self.every_seconds >= DAY_SECONDS


def drain(now: dt.datetime) -> int:
    from token_allowance import conf

    return int(conf.store().drain())


def expire(now: dt.datetime) -> int:
    from token_allowance import leases

    return leases.expire(now)


def fold(now: dt.datetime) -> int:
    from token_allowance import spend

    return spend.fold(now)


def verify(now: dt.datetime) -> int:
    from token_allowance import spend

    return spend.verify(now)


def close_switches(now: dt.datetime) -> int:
    from token_allowance import switches

    return switches.close_ended(now)


def evaluate(now: dt.datetime) -> int:
    from token_allowance.alerts import evaluation

    return evaluation.evaluate(now)


def deliver(now: dt.datetime) -> int:
    from token_allowance.channels import outbox

    return outbox.deliver(now)


def drill(now: dt.datetime) -> int:
    from token_allowance import drills

    return int(drills.run_due(now) is not None)


def sync_prices(now: dt.datetime) -> int:
    from token_allowance.prices import bundled, dated

    plan = dated.plan(bundled.read(bundled.load()).prices, now)
    dated.write(plan.rows)
    return len(plan.rows)


def counted(noun: str, done: str) -> Callable[[int], str]:
    return lambda number: f"{number:,} {noun}{'' if number == 1 else 's'} {done}"


def ended(number: int) -> str:
    from token_allowance import conf

    charged = conf.current().ON_EXPIRE == "charge"
    what = "charged as reserved" if charged else "nothing charged"
    return counted("reservation", f"ended without word, {what}")(number)


#: In the order in which one builds on the other.
JOBS = (
    Job("drain", 5.0, drain, counted("event", "written into the ledger")),
    Job("expire_reservations", MINUTE_SECONDS, expire, ended),
    Job("fold_spend", MINUTE_SECONDS, fold, counted("quarter-hour", "summed anew")),
    Job("close_switches", MINUTE_SECONDS, close_switches, counted("stop", "ended by itself")),
    Job("evaluate_alerts", MINUTE_SECONDS, evaluate, counted("alert", "fired")),
    Job("deliver", 10.0, deliver, counted("message", "sent"), slow=True),
    Job("drill", MINUTE_SECONDS, drill, counted("drill", "made"), slow=True),
    Job("verify_spend", DAY_SECONDS, verify, counted("quarter-hour", "mended"), slow=True),
    Job("sync_prices", DAY_SECONDS, sync_prices, counted("price", "added"), slow=True),
)


def job(name: str) -> Job:
    return next(one for one in JOBS if one.name == name)
