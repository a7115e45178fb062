"""``jobs``: what has to be done again and again, without Celery."""

from __future__ import annotations

import argparse
import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from django.core.management.base import CommandError, OutputWrapper
from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections
from django.db.models import Q
from django.utils import timezone

from token_allowance import conf, schedule
from token_allowance.management.subcommands.drain import told_to_end
from token_allowance.models import Mark
from token_allowance.prices.bundled import NotInstalled
from token_allowance.schedule import Job

HELP = "Do the recurring work once, or with --loop as often as it is due. Instead of Celery's beat."
MOST_SECONDS = 60.0  # between two tries of a job that fails
Say = Callable[[str], None]

logger = logging.getLogger("token_allowance")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--loop", action="store_true", help="Go on until told to end (SIGTERM or SIGINT)."
    )


def run(out: OutputWrapper, options: dict[str, Any]) -> None:
    def say(text: str) -> None:
        out.write(text)
        out.flush()

    if options["loop"]:
        with told_to_end() as end:
            keep(end, say)
    elif failed := once(timezone.now(), say):
        raise CommandError(f"Failed: {', '.join(failed)}.")


def once(now: dt.datetime, say: Say) -> list[str]:
    """Each job that is due, one after the other; the names of those that failed."""
    failed = []
    for job in schedule.JOBS:
        if not is_due(job, now):
            continue
        try:
            say(f"{label(job)}: {job.said(job.work(now))}.")
        except NotInstalled as error:
            say(f"{label(job)}: {error}.")
        except Exception as error:
            say(_failure(job, error))
            failed.append(label(job))
    return failed


def keep(end: threading.Event, say: Say, listed: Sequence[Job] = ()) -> None:
    """Do each job whenever it is due, until told to end; a job in work is finished first.

    Each slow one has a thread of its own, so that a mail server that does not answer delays no
    ledger, and a drill no message.
    """
    chosen = listed or schedule.JOBS
    say(f"jobs: {len(chosen)} jobs, until told to end.")
    lanes = [[job for job in chosen if not job.slow], *([job] for job in chosen if job.slow)]
    threads = [threading.Thread(target=_lane, args=(jobs, end, say)) for jobs in lanes if jobs]
    for thread in threads:
        thread.start()
    end.wait()
    for thread in threads:
        thread.join()
    say("jobs: ended.")


def is_due(job: Job, now: dt.datetime) -> bool:
    """May this process do it now? A daily job is done by the one that first says it begins."""
    if not job.is_daily:
        return True
    alias = getattr(conf.store(), "alias", DEFAULT_DB_ALIAS)
    marks = Mark.objects.using(alias)
    mark, _ = marks.get_or_create(job=f"jobs.{job.name}")
    free = Q(at=None) | Q(at__lte=now - dt.timedelta(seconds=job.every_seconds))
    return bool(marks.filter(free, pk=mark.pk).update(at=now))


def label(job: Job) -> str:
    """``sync-prices``; ``expire`` for ``expire_reservations``."""
    return job.name.removesuffix("_reservations").replace("_", "-")


def _lane(jobs: Sequence[Job], end: threading.Event, say: Say) -> None:
    """The jobs of one thread, each whenever it is due."""
    began = time.monotonic()
    due, failed = dict.fromkeys(jobs, began), dict.fromkeys(jobs, 0)
    while True:
        job = min(jobs, key=due.__getitem__)
        if end.wait(max(0.0, due[job] - time.monotonic())):
            break
        if _done(job, say):
            failed[job], pause = 0, job.every_seconds
        else:
            failed[job] += 1
            pause = min(MOST_SECONDS, job.every_seconds * 2 ** failed[job])
        due[job] = time.monotonic() + min(pause, schedule.MINUTE_SECONDS)
        close_old_connections()
    connections.close_all()


def _done(job: Job, say: Say) -> bool:
    """Do one job if it is due; False if it failed, which stops no other."""
    try:
        now = timezone.now()
        if is_due(job, now) and (number := job.work(now)):
            say(f"{now:%H:%M:%S} {label(job)}: {job.said(number)}.")
    except NotInstalled as error:
        say(f"{label(job)}: {error}.")
    except Exception as error:
        say(_failure(job, error))
        return False
    return True


def _failure(job: Job, error: Exception) -> str:
    logger.debug("token_allowance: job %s failed", job.name, exc_info=error)
    return f"{label(job)}: failed with {type(error).__name__}: {error}"[:300]
