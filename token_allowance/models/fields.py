"""Pieces that several models share."""

from __future__ import annotations

from typing import Any
from zoneinfo import available_timezones

from django.core.exceptions import ValidationError
from django.db import models

from token_allowance import limits


def validate_time_zone(name: str) -> None:
    if name and name not in available_timezones():
        raise ValidationError(f"{name!r} is not a time zone such as Europe/Berlin.")


class Mode(models.TextChoices):
    INHERIT = "", "as set globally"
    ENFORCE = "enforce", "enforce: refuse when spent"
    OBSERVE = "observe", "observe: note what would have been refused"


class Severity(models.TextChoices):
    INFO = "info", "information"
    WARNING = "warning", "warning"
    CRITICAL = "critical", "critical"


def identifier(**options: Any) -> models.CharField[str, str]:
    return models.CharField(max_length=limits.IDENTIFIER_LENGTH, blank=True, default="", **options)
