"""Do alerts reach anybody? In sentences, for ``doctor`` and ``status``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from django.utils import timezone

from token_allowance import conf
from token_allowance.channels import outbox
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import Alert, Channel, Delivery

LATE = dt.timedelta(minutes=10)


def findings() -> Iterator[tuple[str, str]]:
    """``ok``, ``warning`` or ``problem``, and a sentence; nothing where settings cannot be used."""
    try:
        conf.store()
    except (conf.ConfigurationError, StoreUnavailable, ImportError):
        return
    using, now = outbox.alias(), timezone.now()
    rows = Delivery.objects.using(using)
    waiting = rows.filter(state=Delivery.States.PENDING, channel__is_active=True)
    if late := waiting.filter(attempts=0, next_at__lte=now - LATE).count():
        yield (
            "problem",
            f"Messages that nobody sends: {late:,}. Run manage.py allowance jobs --loop, or "
            "Celery's worker and beat with token_allowance.tasks.BEAT_SCHEDULE.",
        )
    failed = rows.filter(state=Delivery.States.FAILED)
    if newest := failed.select_related("channel").order_by("-id").first():
        yield (
            "problem",
            f"Messages that were given up: {failed.count():,}, the last one to channel "
            f"{newest.channel}: {newest.error}. The admin's deliveries can send them again.",
        )
    active = Channel.objects.using(using).filter(is_active=True).count()
    if active:
        yield "ok", f"Alerts are sent to {active:,} {'channel' if active == 1 else 'channels'}."
    else:
        yield "warning", "No channel is active: alerts are seen in the admin only."


def summary() -> str:
    """What ``status`` says: ``2 open, messages waiting: 0, given up: 1``."""
    using = outbox.alias()
    open_ = Alert.objects.using(using).filter(resolved_at=None, acknowledged_at=None)
    states = {
        state: Delivery.objects.using(using).filter(state=state).count()
        for state in (Delivery.States.PENDING, Delivery.States.FAILED)
    }
    waiting, failed = states.values()
    return f"{open_.count():,} open; messages waiting: {waiting:,}, given up: {failed:,}"
