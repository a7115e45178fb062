"""Tasks for a real Celery worker: `celery -A tests.work worker`. See test_celery.py."""

from __future__ import annotations

import os
import signal
import uuid
from typing import Any

from kombu import pools

from project.celery import app
from token_allowance import allowance
from token_allowance.attribution import current
from token_allowance.tasks import BEAT_SCHEDULE

QUEUE = os.environ.setdefault("WORK_QUEUE", f"work-{uuid.uuid4().hex}")
MODEL = "gpt-5-mini"  # a micro-dollar for each token
app.conf.task_default_queue = QUEUE
SPEED = float(os.environ.get("WORK_SPEED", "1"))  # of beat
app.conf.beat_schedule = {
    name: {**entry, "schedule": entry["schedule"] / SPEED} for name, entry in BEAT_SCHEDULE.items()
}
fragile = {"bind": True, "acks_late": True, "reject_on_worker_lost": True}


def hang_up() -> None:
    """Forget what was queued, and every connection to the broker: the next use opens others."""
    app.control.purge()
    pools.reset()
    app._after_fork()


def spend(calls: int = 1, tokens: int = 10, key: str | None = None) -> list[Any]:
    """Make so many calls; how many were admitted, and why the next one was not."""
    for number in range(calls):
        try:
            with allowance.call(
                provider="openai", model=MODEL, input_tokens=tokens, max_output_tokens=0,
                idempotency_key=key,
            ) as call:  # fmt: skip
                call.record(allowance.Usage(tokens))
        except allowance.AllowanceError as error:
            return [number, error.code]
    return [calls, ""]


@app.task
def spent(calls: int = 1, tokens: int = 10) -> list[Any]:
    return spend(calls, tokens)


@app.task
def who() -> list[str]:
    """Who would pay, and under which trace id; leaves a charge behind, as it must not."""
    charge = current()
    found = [*charge.attribution().as_dict().values(), charge.trace_id]
    allowance.charge_to(user="left over").__enter__()
    return found


@app.task
@allowance.charge_to(user=lambda name: name, feature="digest")
def named(name: str) -> list[str]:
    spend()
    return [*current().attribution().as_dict().values(), current().trace_id]


@app.task(bind=True, max_retries=2)
def stubborn(self: Any) -> list[Any]:
    found = spend()
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return found


@app.task
def gathered(results: list[Any]) -> list[Any]:
    """The callback of a chord."""
    return [results, spend()]


@app.task
def parent(calls: int, child_calls: int) -> str:
    """Spend, and have a child spend; the child's id."""
    spend(calls)
    child = spent.delay(child_calls)
    return str(child.id)


@app.task(**fragile)
@allowance.charge_to(feature="fragile", max_calls=3)
def killed(self: Any) -> list[Any]:
    """Its worker is killed after two calls of the first attempt."""
    found = spend(2)
    if not self.request.delivery_info.get("redelivered"):
        os.kill(os.getpid(), signal.SIGKILL)
    return found


@app.task(**fragile)
def paid_once(self: Any) -> list[Any]:
    """Its worker is killed after it has paid."""
    found = spend(key=self.request.id)
    if not self.request.delivery_info.get("redelivered"):
        os.kill(os.getpid(), signal.SIGKILL)
    return found
