"""Which drills there have been: the last one, and whether the next is due or overdue."""

from __future__ import annotations

import datetime as dt
import re

from django.db import DEFAULT_DB_ALIAS
from django.db.models import Q

from token_allowance import conf
from token_allowance.models import Drill, Mark, Reservation

JOB = "drill"
REASON = re.compile(r"drill [0-9]+, ends by itself")
AGAIN_SECONDS = 24 * 3600  # after a drill that did not come to its end


def reason(drill: Drill) -> str:
    """What the switch of this drill says of itself."""
    return f"drill {drill.pk}, ends by itself"


def is_reason(text: str) -> bool:
    """Was a switch engaged for a drill, and not in earnest?"""
    return REASON.fullmatch(text) is not None


def alias() -> str:
    """The database that has the switches, the drills and the ledger."""
    return str(getattr(conf.store(), "alias", DEFAULT_DB_ALIAS))


def last() -> Drill | None:
    """The newest drill that came to its end, whether it passed or failed."""
    ended = Drill.objects.using(alias()).exclude(passed=None)
    return ended.order_by("-started_at", "-id").first()


def overdue(now: dt.datetime) -> bool:
    """Is the last drill older than ``overdue_days``?

    Where there never was one, it is once calls have been made for that long: a switch matters only
    to who makes calls, and who begins today is not late yet.
    """
    since = now - dt.timedelta(days=conf.current().drill["overdue_days"])
    drill = last()
    if drill is not None:
        return drill.started_at < since
    first = Reservation.objects.using(alias()).order_by("id").first()  # ids rise with time
    return first is not None and first.created_at < since


def due(now: dt.datetime) -> bool:
    """Is a target set, and the last drill older than ``every_days``?"""
    chosen = conf.current().drill
    if not (chosen["tenant"] or chosen["feature"]):
        return False
    drill = last()
    return drill is None or drill.started_at <= now - dt.timedelta(days=chosen["every_days"])


def claim(now: dt.datetime) -> bool:
    """Take the drill that is due upon oneself: of all processes one does, once a day at most."""
    marks = Mark.objects.using(alias())
    marks.get_or_create(job=JOB)
    before = now - dt.timedelta(seconds=AGAIN_SECONDS)
    free = marks.filter(Q(at=None) | Q(at__lte=before), job=JOB)
    return due(now) and free.update(at=now) == 1
