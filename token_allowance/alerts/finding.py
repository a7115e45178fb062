"""What a rule has found: an alert, if it was not told before."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GLOBAL = "global"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing worth telling. ``title`` is the first line and must stand alone.

    ``target`` is a counter's key, dimensions such as ``feature=agent``, or ``global``. ``window``
    names the period within which it is told once; empty: told once until it is no longer found.
    Of one target and window only a higher ``rung`` or a higher ``amount`` is told again. ``value``
    and ``threshold`` are in ``unit``, micro-dollars for ``cost``. ``details`` go into the snapshot
    as JSON; the top spenders in it are summed from ``since``, by default the last quarter hour.
    """

    target: str
    title: str
    window: str = ""
    rung: int = 0
    amount: int = 0
    severity: str | None = None  # None: the rule's
    tenant: str = ""
    user: str = ""
    session: str = ""
    feature: str = ""
    model: str = ""
    value: int | None = None
    threshold: int | None = None
    unit: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    since: dt.datetime | None = None
