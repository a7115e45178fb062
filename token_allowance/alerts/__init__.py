"""Alerts: what is told to people, once, with what was seen when it happened."""

from __future__ import annotations
