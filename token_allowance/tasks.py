"""The recurring work as Celery tasks; ``manage.py allowance`` does the same without Celery.

Settings may import BEAT_SCHEDULE from here, so what needs Django to be set up is imported late.
"""

from __future__ import annotations

from typing import Any

from celery import shared_task

DRAIN_SECONDS = 5.0
MINUTE_SECONDS = 60.0
DAY_SECONDS = 24 * 3600.0

BEAT_SCHEDULE: dict[str, dict[str, Any]] = {
    "token_allowance.drain": {
        "task": "token_allowance.drain",
        "schedule": DRAIN_SECONDS,
        "options": {"expires": DRAIN_SECONDS},
    },
    "token_allowance.expire_reservations": {
        "task": "token_allowance.expire_reservations",
        "schedule": MINUTE_SECONDS,
        "options": {"expires": MINUTE_SECONDS},
    },
    "token_allowance.sync_prices": {
        "task": "token_allowance.sync_prices",
        "schedule": DAY_SECONDS,
        "options": {"expires": DAY_SECONDS},
    },
}


@shared_task(name="token_allowance.drain", ignore_result=True)  # type: ignore[untyped-decorator]
def drain() -> int:
    """Write what Redis has decided into the ledger; how many events there were.

    Several at once do no harm: one works, the others wait for it. Nothing to do for other stores.
    """
    from token_allowance import conf

    return int(conf.store().drain())


@shared_task(name="token_allowance.expire_reservations", ignore_result=True)  # type: ignore[untyped-decorator]
def expire_reservations() -> int:
    """End the reservations whose lease has run out; how many there were."""
    from django.utils import timezone

    from token_allowance import leases

    return leases.expire(timezone.now())


@shared_task(name="token_allowance.sync_prices", ignore_result=True)  # type: ignore[untyped-decorator]
def sync_prices() -> int:
    """Add the price rows that genai-prices knows and the table does not; how many there were."""
    from django.utils import timezone

    from token_allowance.prices import bundled, dated

    plan = dated.plan(bundled.read(bundled.load()).prices, timezone.now())
    dated.write(plan.rows)
    return len(plan.rows)
