"""How far recurring work has come, and from where it reads once more."""

from __future__ import annotations

import datetime as dt

from django.db.models import Q

from token_allowance.models import Mark

#: A settlement carries the moment it was made, and comes in later: when its transaction ends.
OVERLAP = dt.timedelta(minutes=10)


def read(alias: str, job: str) -> Mark:
    """How far the job has come; nowhere, if it never was done."""
    return Mark.objects.using(alias).get_or_create(job=job)[0]


def since(mark: Mark, now: dt.datetime) -> dt.datetime | None:
    """From when on to read again; None: from the beginning."""
    return None if mark.at is None else min(mark.at, now) - OVERLAP


def following(mark: Mark, now: dt.datetime) -> dt.datetime:
    """The moment to note when all until now was read.

    After a standstill it takes several rounds to catch up: where the database was away, what was
    settled meanwhile waits in the memory of processes, and comes in after the first round.
    """
    if mark.at is None or now - mark.at <= OVERLAP:
        return now
    return mark.at + (now - mark.at) / 2


def move(alias: str, job: str, *, at: dt.datetime, number: int = 0) -> None:
    """Note how far it has come, unless another process has come further."""
    own = Mark.objects.using(alias).filter(job=job)
    own.filter(Q(at=None) | Q(at__lt=at)).update(at=at)
    own.filter(number__lt=number).update(number=number)
