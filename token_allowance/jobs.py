"""A charge on its way to a Celery worker: signed, in a header of the task's message.

Written when a message is published and read before its task runs, so retries, chains, chords and
the children of a task are charged like the code that set them off (case C80). Only attribution,
trace id and caps travel.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import signals
from django.core import signing

from token_allowance.attribution import NAMES, NOBODY, Charge, charge_to, current
from token_allowance.runs import Job, Run, microseconds_now, new_id

HEADER = "token_allowance"
SALT = "token_allowance.jobs"
logger = logging.getLogger("token_allowance")


def connect() -> None:
    """Listen to Celery. Repeating it changes nothing."""
    for signal, receiver in (
        (signals.before_task_publish, write),
        (signals.task_prerun, begin),
        (signals.task_postrun, end),
    ):
        signal.connect(receiver, weak=False, dispatch_uid=f"{SALT}.{receiver.__name__}")


def write(headers: dict[str, Any] | None = None, **_: Any) -> None:
    """Sign the current charge into the headers of a message about to be published.

    The header of a retry stays: the next attempt begins with the charge the first one had.
    """
    if headers is None or not headers.get("id"):
        return
    if _content(headers.get(HEADER), headers["id"]) is None:
        headers[HEADER] = signed(current(), headers["id"])


def begin(task: Any, task_id: str, **_: Any) -> None:
    """Charge what a worker is about to run as its header says; as nobody's without a valid one."""
    if task.request.is_eager:  # runs inside its caller, under the caller's charge
        return
    charge_to.make_current(NOBODY)
    header = task.request.get(HEADER)
    content = _content(header, task_id)
    if content is None and header is not None:
        logger.warning(
            "token_allowance: the charge of task %s [%s] is not signed by this project; "
            "its model calls are nobody's",
            task.name,
            task_id,
        )
    charge_to.make_current(_charge(content or {}, task))


def end(task: Any, **_: Any) -> None:
    """Whatever the task left behind, the worker's next one begins without it."""
    if not task.request.is_eager:
        charge_to.make_current(NOBODY)


def signed(charge: Charge, task_id: str) -> str:
    """The header of one task: its own id is inside, so no other task can use it."""
    attribution = charge.attribution().as_dict()
    for run in charge.runs:
        run.share()
    content = {
        "task": task_id,
        "message": new_id(),
        "since": microseconds_now(),
        "charge": {name: value for name, value in attribution.items() if value},
        "trace_id": charge.trace_id,
        "runs": [
            [run.path, run.max_calls, run.max_cost_micros, run.since, run.untouched]
            for run in charge.runs
            if run.path
        ],
    }
    return signing.dumps(content, salt=SALT)


def _content(header: object, task_id: str) -> dict[str, Any] | None:
    """What a header says, if this project has signed it for this task."""
    if not isinstance(header, str):
        return None
    try:
        content = signing.loads(header, salt=SALT)
    except signing.BadSignature:
        return None
    return content if content["task"] == task_id else None


def _charge(content: dict[str, Any], task: Any) -> Charge:
    stated = content.get("charge", {})
    info = task.request.delivery_info or {}
    return Charge(
        stated=tuple((name, stated[name]) for name in NAMES if name in stated),
        runs=tuple(Run.elsewhere(*given) for given in content.get("runs", ())),
        trace_id=content.get("trace_id", ""),
        job=Job(
            message=content.get("message", ""),
            since=content.get("since", 0),
            again=bool(task.request.retries or info.get("redelivered")),
            layers=_layers(task.run),
        ),
    )


def _layers(function: Any) -> tuple[Any, ...]:
    """The task's function and what it wraps, outermost first."""
    found: list[Any] = []
    while function is not None:
        found.append(getattr(function, "__func__", function))
        function = getattr(function, "__wrapped__", None)
    return tuple(found)
