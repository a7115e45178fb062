"""Alerts and channels for tests of what is sent."""

from __future__ import annotations

import datetime as dt
from typing import Any

from token_allowance.models import Alert, AlertRule, Channel

NOW = dt.datetime(2026, 11, 29, 14, 2, 11, tzinfo=dt.UTC)
RESET = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)
LOOPBACK = {"WEBHOOK_ALLOWED": ["127.0.0.0/8"]}
SPENDERS = [
    {"feature": "agent", "model": "claude-sonnet", "user": "u_8812", "cost_micros": 31_843_217,
     "percent": "63", "calls": 412, "usual_calls": 29},
    {"feature": "summarise", "model": "gpt-mini", "users": 7, "cost_micros": 5_020_000,
     "percent": "10", "calls": 88},
    {"feature": "label", "model": "gpt-mini", "user": "u_1", "cost_micros": 719, "percent": "0",
     "calls": 1},
]  # fmt: skip


def snapshot(**changed: Any) -> dict[str, Any]:
    """What was seen when a monthly budget was spent."""
    return {
        "state_before": "degraded",
        "state_after": "blocked",
        "used": 250_000_000,
        "amount": 250_000_000,
        "window": "monthly",
        "resets_at": RESET.isoformat(),
        "taken_at": NOW.isoformat(),
        "changed": "$ per hour 14x the usual for a Saturday, since 13:40 UTC.",
        "refused_calls": 3,
        "refused_users": 2,
        "top_minutes": 15,
        "top_spenders": SPENDERS,
        "prompt": "my secret prompt",
        **changed,
    }


def rule(using: str = "default", kind: str = "budget", **given: Any) -> AlertRule:
    name = given.pop("name", "tenant ladder")
    return AlertRule.objects.using(using).get_or_create(
        name=name, defaults={"kind": kind, **given}
    )[0]


def alert(using: str = "default", seen: dict[str, Any] | None = None, **given: Any) -> Alert:
    row: dict[str, Any] = {
        "rule": given.pop("rule", None) or rule(using),
        "target": "8|tenant=acme-corp|cost|month/1/UTC|20261101T000000Z",
        "window": "20261101T000000Z",
        "rung": 100,
        "amount": 250_000_000,
        "severity": "critical",
        "tenant": "acme-corp",
        "title": "acme-corp reached its monthly limit: $250.00 of $250.00",
        "value": 250_000_000,
        "threshold": 250_000_000,
        "unit": "cost",
        "snapshot": snapshot(**(seen or {})),
        "fired_at": NOW,
    }
    return Alert.objects.using(using).create(**{**row, **given})


def channel(using: str = "default", kind: str = "email", **given: Any) -> Channel:
    row = {"name": kind, "kind": kind, "address": "ops@example.com" if kind == "email" else ""}
    return Channel.objects.using(using).create(**{**row, **given})
