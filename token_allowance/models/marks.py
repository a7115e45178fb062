"""How far recurring work has come."""

from __future__ import annotations

from django.db import models


class Mark(models.Model):
    """How far one recurring job has come. Its row is locked while the job works: one at a time."""

    job = models.CharField(max_length=64, primary_key=True)
    at = models.DateTimeField(null=True, blank=True)
    number = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return self.job
