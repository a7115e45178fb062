"""Deliveries: written in the transaction of their alert, sent outside of any, until they are sent.

A sender claims one delivery for a time, sends it, and marks it. If it is killed in between, the
claim runs out and another one sends again under the same id: twice at most, never not at all (case
C86). Nothing here needs a broker: it only makes the first try come sooner.
"""

from __future__ import annotations

import datetime as dt
import logging
import sys
import time
from collections.abc import Callable, Iterable

from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models import F, Q, QuerySet

from token_allowance import conf
from token_allowance.channels import failures, senders
from token_allowance.channels.payload import payload, trial_payload
from token_allowance.models import Alert, Channel, Delivery, Severity

Clock = Callable[[], dt.datetime]
logger = logging.getLogger("token_allowance")

CLAIM_SECONDS = 120.0  # far above what sending takes
RETRY_SECONDS = 30.0  # then twice as long each time
RETRY_MOST_SECONDS = 3600.0
ATTEMPTS = 8  # the last an hour and a half after the first
ROUND_SECONDS = 20.0  # what is left then waits for the next round
CANDIDATES = 20  # looked at for one that nobody else takes
SEVERITIES = tuple(Severity.values)  # from the least
PENDING = Delivery.States.PENDING
TASKS, TASK = "token_allowance.tasks", "deliver"


def alias() -> str:
    """The database of alerts: that of the ledger."""
    return str(getattr(conf.store(), "alias", DEFAULT_DB_ALIAS))


def tell(alert: Alert, event: str, now: dt.datetime) -> int:
    """Write the deliveries of an alert that was fired or resolved; how many there are.

    To be called in the transaction that writes the alert: both are there or neither. What is
    muted is not told, and what was fired without anybody being told is not taken back.
    """
    using = alert._state.db or alias()
    if alert.muted_until is not None and now < alert.muted_until:
        return 0
    chosen = list(_channels(alert, event, using))
    if not chosen:
        return 0
    message = payload(alert, event, now)
    rows = [
        Delivery(
            alert=alert, channel=one, event=event, payload=message, created_at=now, next_at=now
        )
        for one in chosen
    ]
    Delivery.objects.using(using).bulk_create(rows, ignore_conflicts=True)
    transaction.on_commit(hurry, using=using, robust=True)
    return len(rows)


def hurry() -> None:
    """Have what is due sent now rather than in the next round, if Celery is there to do it.

    By the module that knows the tasks: if nothing has imported it, nobody has set up a broker. One
    that is down costs nothing but the time till the next round.
    """
    task = getattr(sys.modules.get(TASKS), TASK, None)
    if task is None or not task.app.conf.broker_url or task.app.conf.task_always_eager:
        return
    try:
        task.apply_async(retry=False, ignore_result=True)
    except Exception as error:
        logger.warning("token_allowance: no broker, alerts wait: %s", type(error).__name__)


def deliver(now: dt.datetime, using: str | None = None) -> int:
    """Send what is due; how many messages were sent. Any number may run at once.

    A channel that has failed is left alone for the rest of the round. RuntimeError inside a
    transaction: what is sent cannot be rolled back.
    """
    chosen, clock = using or alias(), clock_from(now)
    end = now + dt.timedelta(seconds=ROUND_SECONDS)
    sent, failed = 0, set[int]()
    while clock() < end and (found := claim(clock(), chosen, failed)) is not None:
        if send(found, clock, chosen):
            sent += 1
        else:
            failed.add(found.channel_id)
    return sent


def clock_from(now: dt.datetime) -> Clock:
    """Time that goes on from ``now``: sending takes a while, and claims run out meanwhile."""
    started = time.monotonic()
    return lambda: now + dt.timedelta(seconds=time.monotonic() - started)


def deliver_one(delivery: Delivery, now: dt.datetime) -> bool:
    """Send this one now, if nobody else is at it; whether it was sent. RuntimeError as above."""
    using = delivery._state.db or alias()
    found = claim(now, using, only=delivery.pk)
    return found is not None and send(found, clock_from(now), using)


def claim(
    now: dt.datetime, using: str, without: Iterable[int] = (), only: int | None = None
) -> Delivery | None:
    """The next delivery that is due, with the right to send it for a while; None: there is none.

    ``attempts`` counts claims, so whoever has seen the same row and comes second finds it changed.
    """
    rows = Delivery.objects.using(using)
    free = Q(claimed_until=None) | Q(claimed_until__lte=now)
    wanted = Q(channel__is_active=True) | Q(event=Delivery.Events.TEST)
    due = rows.filter(free, wanted, state=PENDING, next_at__lte=now).exclude(channel__in=without)
    due = due if only is None else due.filter(pk=only)
    until = now + dt.timedelta(seconds=CLAIM_SECONDS)
    for found in due.select_related("channel").order_by("next_at", "id")[:CANDIDATES]:
        seen = rows.filter(pk=found.pk, state=PENDING, attempts=found.attempts)
        with transaction.atomic(using=using, durable=True):
            ours = seen.update(claimed_until=until, attempts=F("attempts") + 1)
        if ours:
            found.attempts, found.claimed_until = found.attempts + 1, until
            return found
    return None


def send(delivery: Delivery, clock: Clock, using: str) -> bool:
    """Send what was claimed and note how it went; whether it was sent."""
    row = Delivery.objects.using(using).filter(pk=delivery.pk, state=PENDING)
    try:
        if delivery.attempts > ATTEMPTS:
            raise senders.Failed("whoever sent it ended each time before it was done", final=True)
        senders.send(delivery, clock())
    except senders.Failed as failure:
        _failed(row.filter(claimed_until=delivery.claimed_until), delivery, failure, clock(), using)
        return False
    row.update(state=Delivery.States.SENT, sent_at=clock(), claimed_until=None, error="")
    failures.over(delivery.channel, clock(), using)
    return True


def _failed(
    row: QuerySet[Delivery], delivery: Delivery, failure: senders.Failed, now: dt.datetime,
    using: str,
) -> None:  # fmt: skip
    given_up = failure.final or delivery.attempts >= ATTEMPTS
    pause = min(RETRY_MOST_SECONDS, RETRY_SECONDS * 2 ** (delivery.attempts - 1))
    changed = row.update(
        state=Delivery.States.FAILED if given_up else PENDING,
        next_at=now + dt.timedelta(seconds=pause),
        claimed_until=None,
        error=str(failure),
    )
    logger.warning("token_allowance: %s is not told: %s", delivery.channel, failure)
    if changed and given_up:
        failures.tell(delivery.channel, str(failure), now, using)


def again(deliveries: QuerySet[Delivery], now: dt.datetime) -> int:
    """Send these once more, as they are: what is on its way stays so."""
    return deliveries.exclude(state=PENDING).update(
        state=PENDING, attempts=0, next_at=now, claimed_until=None, error=""
    )


def trial(channel: Channel, by: str, now: dt.datetime) -> Delivery:
    """Write a message that only shows whether messages arrive, marked [TEST]."""
    message = trial_payload(channel, by, now)
    return Delivery.objects.using(channel._state.db).create(
        channel=channel, event=Delivery.Events.TEST, payload=message, created_at=now, next_at=now
    )


def _channels(alert: Alert, event: str, using: str) -> QuerySet[Channel]:
    active = Channel.objects.using(using).filter(is_active=True)
    if event == Delivery.Events.RESOLVED:
        told = Delivery.objects.using(using).filter(alert=alert, event=Delivery.Events.FIRED)
        return active.filter(pk__in=told.values("channel"))
    if alert.rule.channels.exists():
        return active.filter(alertrule=alert.rule)
    reached = SEVERITIES[: SEVERITIES.index(alert.severity) + 1]
    return active.filter(least_severity__in=reached)
