"""Drills: each time the kill switch was tried on a target, and what was measured."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from token_allowance.models.fields import identifier


class Drill(models.Model):
    """One drill. ``passed`` null: it did not come to its end, ``error`` says why.

    Times are milliseconds from the pull of the switch, its commit included: to the first refusal,
    and to the last admission of a call that began once it was engaged (0: there was none).
    ``attempts`` counts what was tried of ``callers`` that were refused: more than one each is a
    retry.
    """

    tenant = identifier()
    feature = identifier()
    percent = models.PositiveSmallIntegerField(default=100)
    processes = models.PositiveSmallIntegerField()
    by = models.CharField(max_length=200)
    started_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True, blank=True)
    slo_ms = models.PositiveIntegerField()
    effect_ms = models.PositiveIntegerField(null=True, blank=True)
    last_admission_ms = models.PositiveIntegerField(null=True, blank=True)
    calls = models.PositiveIntegerField(default=0)
    admitted_after = models.PositiveIntegerField(default=0)
    callers = models.PositiveIntegerField(default=0)
    attempts = models.PositiveIntegerField(default=0)
    codes = models.JSONField(default=dict, blank=True)
    passed = models.BooleanField(null=True)
    error = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        ordering = ["-started_at", "-id"]

    def __str__(self) -> str:
        result = {True: "passed", False: "failed", None: "not finished"}[self.passed]
        return f"{self.started_at:%Y-%m-%d %H:%M} {result}"
