"""Does anybody look for alerts, and can every rule be evaluated? In sentences, for ``doctor``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from django.db.models import Max
from django.utils import timezone

from token_allowance import conf
from token_allowance.channels import outbox
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import AlertRule

LATE = dt.timedelta(minutes=10)


def findings() -> Iterator[tuple[str, str]]:
    """``problem`` and a sentence; nothing where all is well or settings cannot be used."""
    try:
        conf.store()
    except (conf.ConfigurationError, StoreUnavailable, ImportError):
        return
    active = AlertRule.objects.using(outbox.alias()).filter(is_active=True)
    for rule in active.exclude(error=""):
        yield "problem", f'The alert rule "{rule.name}" cannot be evaluated: {rule.error}'
    last = active.aggregate(last=Max("evaluated_at"))["last"]
    if last is not None and timezone.now() - last > LATE:
        yield (
            "problem",
            f"Nobody has looked for alerts since {last:%Y-%m-%d %H:%M} UTC. Run manage.py "
            "allowance jobs --loop, or Celery's beat with token_allowance.tasks.BEAT_SCHEDULE.",
        )
