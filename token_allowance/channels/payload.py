"""What a message says, as fields: each channel words it in its own way."""

from __future__ import annotations

import datetime as dt
from typing import Any

from token_allowance.models import Alert


def payload(alert: Alert, event: str, now: dt.datetime) -> dict[str, Any]:
    """The message about this alert. ``event`` is one of ``Delivery.Events``."""
    return {
        "event": event,
        "alert": alert.pk,
        "kind": alert.rule.kind,
        "rule": alert.rule.name,
        "severity": alert.severity,
        "title": alert.title,
        "fired_at": alert.fired_at.isoformat(),
        "sent_at": now.isoformat(),
        **alert.snapshot,
    }
