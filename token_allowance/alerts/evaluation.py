"""Looking, every minute, for what the rules are about."""

from __future__ import annotations

import datetime as dt
import logging

from token_allowance import conf
from token_allowance.alerts import defaults, firing, kinds, recovery
from token_allowance.channels import outbox
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import AlertRule

ERROR_LENGTH = 300
logger = logging.getLogger("token_allowance")


def evaluate(now: dt.datetime) -> int:
    """Fire what the active rules find and was not told before; how many alerts that were.

    Any number of processes may do it at once. A rule that fails stops no other: it is logged, and
    written on the rule. Nothing to do where the store keeps nothing, as the one in memory.
    """
    store = conf.store()
    if not store.shared:
        return 0
    try:
        store.drain()
    except StoreUnavailable as error:  # a rule of its own tells of it
        logger.warning("token_allowance: alerts are evaluated without the latest calls: %s", error)
    alias = outbox.alias()
    defaults.ensure(alias)
    active = AlertRule.objects.using(alias).filter(is_active=True, kind__in=kinds.FINDS)
    return sum(_evaluated(rule, now, alias) for rule in active.order_by("id"))


def _evaluated(rule: AlertRule, now: dt.datetime, alias: str) -> int:
    fired, found, error = 0, set[tuple[str, str]](), ""
    try:
        for finding in kinds.FINDS[rule.kind](rule, now):
            found.add((finding.target, finding.window))
            fired += firing.fire(rule, finding, now, alias)
        recovery.resolve(rule, found, now, alias)
    except Exception as failure:
        known = isinstance(failure, StoreUnavailable)  # for minutes on end: a line is enough
        logger.error(
            "token_allowance: the alert rule %r cannot be evaluated: %s",
            rule.name,
            failure,
            exc_info=not known,
        )
        error = f"{type(failure).__name__}: {failure}"[:ERROR_LENGTH]
    AlertRule.objects.using(alias).filter(pk=rule.pk).update(evaluated_at=now, error=error)
    return fired
