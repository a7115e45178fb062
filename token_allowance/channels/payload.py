"""What is told about an alert, as fields: frozen when the delivery is written, sent as it is.

Its rows are ``models.Alert`` and the alert's snapshot, of which these keys are read, all optional:
``state_before`` and ``state_after`` (ok, warning, degraded, blocked, stopped, observing), ``used``
and ``amount`` (in the alert's unit; else its value and threshold), ``window`` ("monthly"),
``resets_at``, ``taken_at`` and ``forecast_at`` (ISO), ``limit`` (its id), ``sentence`` (what it
means, where the kind does not say), ``changed`` (what changed), ``refused_calls``,
``refused_users``, ``next`` (the next rung, percent), ``top_minutes``, and ``top_spenders``: a list
of ``tenant user users feature model cost_micros tokens calls usual_calls percent``.
Nothing else of the snapshot leaves.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4, uuid5

from token_allowance import conf
from token_allowance.channels import links
from token_allowance.limits import DIMENSIONS
from token_allowance.models import Alert, Channel, Delivery

EVENTS = UUID("6f0e6f3c-8f5c-5c0e-9d0a-1f6a3f0f7b52")  # the name space of our event ids
OVER = "ok"  # the state after an alert that is over
MOST_SPENDERS = 10
SPENDER = (
    *DIMENSIONS, "users", "cost_micros", "tokens", "calls", "usual_calls", "percent",
)  # fmt: skip
COPIED = (
    "state_before", "state_after", "window", "resets_at", "forecast_at", "sentence", "changed",
    "refused_calls", "refused_users", "next", "top_minutes",
)  # fmt: skip


def payload(alert: Alert, event: str, now: dt.datetime) -> dict[str, Any]:
    """The message about an alert that was fired or resolved.

    ``used`` and ``amount`` are whole micro-dollars, tokens or calls; ``percent_used`` is text with
    at most one decimal, never rounded up. The same alert and event always have the same ``id``.
    """
    seen: Mapping[str, Any] = alert.snapshot or {}
    used, amount = seen.get("used", alert.value), seen.get("amount", alert.threshold)
    spenders = seen.get("top_spenders") or ()
    id = uuid5(EVENTS, f"{alert.pk} {alert.fired_at.isoformat()} {event}")
    copied = {name: seen.get(name) for name in COPIED}
    if event == Delivery.Events.RESOLVED:
        copied |= {"state_before": copied["state_after"], "state_after": OVER}
    return {
        **_frame(str(id), event, now),
        **copied,
        "alert": alert.pk,
        "kind": alert.rule.kind,
        "rule": alert.rule.name,
        "rung": alert.rung or None,
        "severity": alert.severity,
        "title": alert.title,
        "target": {name: value for name in DIMENSIONS if (value := getattr(alert, name))},
        "unit": alert.unit,
        "used": used,
        "amount": amount,
        "percent_used": percent(used, amount),
        "top_spenders": [_spender(one) for one in spenders[:MOST_SPENDERS]],
        "links": links.of_alert(alert),
        "fired_at": alert.fired_at.isoformat(),
        "snapshot_at": seen.get("taken_at") or alert.fired_at.isoformat(),
    }


def trial_payload(channel: Channel, by: str, now: dt.datetime) -> dict[str, Any]:
    """A message that only shows whether messages arrive."""
    return {
        **_frame(str(uuid4()), Delivery.Events.TEST, now),
        "severity": channel.least_severity,
        "title": f"a message to channel {channel.name}",
        "sentence": f"Nothing has happened: {by} sent this to see whether it arrives.",
        "target": {},
        "top_spenders": [],
        "links": {},
        "snapshot_at": now.isoformat(),
    }


def percent(used: int | None, amount: int | None) -> str | None:
    """Percent used, "70" or "99.9"; None where there is no amount to use."""
    if used is None or not amount:
        return None
    whole, tenth = divmod(used * 1000 // amount, 10)
    return f"{whole}.{tenth}" if tenth else str(whole)


def _frame(id: str, event: str, now: dt.datetime) -> dict[str, Any]:
    return {
        "id": id,
        "version": 1,
        "event": str(event),
        "at": now.isoformat(),
        "environment": conf.current().ENVIRONMENT,
    }


def _spender(seen: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name in SPENDER if (value := seen.get(name)) not in (None, "")}
