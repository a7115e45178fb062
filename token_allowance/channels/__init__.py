"""Channels: how what is told reaches people."""

from __future__ import annotations
