"""The recurring work as Celery tasks; ``manage.py allowance jobs`` does the same without Celery.

Settings may import BEAT_SCHEDULE from here, so what needs Django to be set up is imported late.
"""

from __future__ import annotations

from typing import Any

from celery import shared_task

from token_allowance import schedule

#: A task that nobody has taken before the next one is published is dropped.
BEAT_SCHEDULE: dict[str, dict[str, Any]] = {
    job.task: {
        "task": job.task,
        "schedule": job.every_seconds,
        "options": {"expires": job.every_seconds},
    }
    for job in schedule.JOBS
}


def run(name: str) -> int:
    from django.utils import timezone

    return schedule.job(name).work(timezone.now())


@shared_task(name="token_allowance.drain", ignore_result=True)  # type: ignore[untyped-decorator]
def drain() -> int:
    """Write what Redis has decided into the ledger; how many events there were.

    Several at once do no harm: one works, the others wait for it. Nothing to do for other stores.
    """
    return run("drain")


@shared_task(name="token_allowance.expire_reservations", ignore_result=True)  # type: ignore[untyped-decorator]
def expire_reservations() -> int:
    """End the reservations whose lease has run out; how many there were."""
    return run("expire_reservations")


@shared_task(name="token_allowance.fold_spend", ignore_result=True)  # type: ignore[untyped-decorator]
def fold_spend() -> int:
    """Bring the roll-ups up to what the ledger says; how many quarters of an hour changed."""
    return run("fold_spend")


@shared_task(name="token_allowance.close_switches", ignore_result=True)  # type: ignore[untyped-decorator]
def close_switches() -> int:
    """Keep in the history which switches have ended by themselves; how many there were."""
    return run("close_switches")


@shared_task(name="token_allowance.evaluate_alerts", ignore_result=True)  # type: ignore[untyped-decorator]
def evaluate_alerts() -> int:
    """Look for what alert rules are about; how many alerts were fired, by whichever process."""
    return run("evaluate_alerts")


@shared_task(name="token_allowance.deliver", ignore_result=True)  # type: ignore[untyped-decorator]
def deliver() -> int:
    """Send the alerts that are due; how many messages were sent.

    Published when an alert is written, and every ten seconds for what that could not reach. Each
    message is claimed by one sender, so a task that is delivered twice sends nothing twice.
    """
    return run("deliver")


@shared_task(name="token_allowance.drill", ignore_result=True)  # type: ignore[untyped-decorator]
def drill() -> int:
    """Make the drill that is due, if one is; how many were made. It takes seconds."""
    return run("drill")


@shared_task(name="token_allowance.verify_spend", ignore_result=True)  # type: ignore[untyped-decorator]
def verify_spend() -> int:
    """Compare the roll-ups of the last days with the ledger; how many were mended."""
    return run("verify_spend")


@shared_task(name="token_allowance.sync_prices", ignore_result=True)  # type: ignore[untyped-decorator]
def sync_prices() -> int:
    """Add the price rows that genai-prices knows and the table does not; how many there were."""
    return run("sync_prices")
