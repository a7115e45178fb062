"""Drills: a kill switch that was never pulled in earnest is one that nobody knows to work.

A drill engages a real switch on a target that may be stopped for a moment, makes real metered calls
against it from several processes, and measures how long they were still admitted, what their
callers saw, and whether an SDK tried again.
"""

from __future__ import annotations

import datetime as dt
import logging

from token_allowance.drill_record import claim, last, overdue
from token_allowance.drills.drill import run
from token_allowance.drills.plan import CannotDrill, Plan, planned
from token_allowance.models import Drill

__all__ = ["CannotDrill", "Plan", "last", "overdue", "planned", "run", "run_due"]
logger = logging.getLogger("token_allowance")


def run_due(now: dt.datetime) -> Drill | None:
    """Run the drill that DRILL names, if it is due; of many processes that ask at once, one does.

    None if it is not due, or could not be made: then a log says why, and it is tried again a day
    later.
    """
    if not claim(now):
        return None
    try:
        drill = run(planned(by="schedule"))
    except (CannotDrill, ValueError) as error:
        logger.error("token_allowance: the drill that is due cannot be made: %s", error)
        return None
    if not drill.passed:
        logger.error("token_allowance: a drill has failed: %s", drill.error)
    return drill
