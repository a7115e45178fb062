"""The store cannot be asked, or the ledger does not say all that the store has decided.

``threshold``: seconds that the ledger may be behind; ``minutes``: how long a settlement may wait.
Where the alerts' own database is down nothing can be written, so nothing is told: let a monitor
ask for ``manage.py allowance doctor``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from token_allowance import conf, limits
from token_allowance.alerts import flagged, telling
from token_allowance.alerts.finding import Finding
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import AlertRule, DeadLetter, PendingSettlement, Reservation

BEHIND_SECONDS = 60
WAITING_MINUTES = 5
UNMETERED = dt.timedelta(hours=1)


def find(rule: AlertRule, now: dt.datetime) -> Iterator[Finding]:
    behind = BEHIND_SECONDS if rule.threshold is None else int(rule.threshold)
    yield from _store(behind, now)
    alias = telling.alias_of(rule)
    if dead := DeadLetter.objects.using(alias).count():
        yield Finding(
            target="dead letters",
            title=f"{telling.plural(dead, 'event')} could not be written into the ledger",
            value=dead,
            unit="events",
            details=telling.details(),
        )
    minutes = rule.minutes or WAITING_MINUTES
    before = now - dt.timedelta(minutes=minutes)
    if kept := PendingSettlement.objects.using(alias).filter(created_at__lt=before).count():
        yield Finding(
            target="settlements",
            title=f"{telling.plural(kept, 'settlement')} could not be told to the store "
            f"for more than {telling.plural(minutes, 'minute')}",
            value=kept,
            unit="calls",
            details=telling.details(),
        )
    calls = Reservation.objects.using(alias).filter(flagged.bears("unmetered_admission"))
    if count := calls.filter(created_at__gte=now - UNMETERED, created_at__lte=now).count():
        yield Finding(
            target="unmetered",
            title=f"{telling.plural(count, 'call')} admitted without the store in the "
            "last hour: no budget was asked",
            value=count,
            unit="calls",
            since=now - UNMETERED,
            details=telling.details(),
        )


def _store(most_behind: int, now: dt.datetime) -> Iterator[Finding]:
    probe = limits.open_budget(limits.Limit(), {}, now)
    try:
        conf.store().usage([probe])
    except StoreUnavailable as error:
        admits = conf.current().admits_without_store
        yield Finding(
            target="store",
            title="The budget store cannot be asked: calls are "
            + ("admitted unmetered" if admits else "refused"),
            details={"error": str(error)[:300]},
        )
        return
    behind = conf.store().behind_seconds()
    if behind is not None and behind > most_behind:
        yield Finding(
            target="ledger",
            title=f"The ledger is {behind:,.0f} seconds behind the store: is manage.py "
            "allowance drain --loop, or Celery's beat, running?",
            value=int(behind),
            threshold=most_behind,
            unit="seconds",
        )
