"""The history of limits: who changed what, and why."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from django.db import models
from django.utils import timezone

from token_allowance.models.history import History
from token_allowance.models.limits import Limit

NOT_SAID = ("id", "tracked_since", "created_at")
REASON_LENGTH = 500


class LimitRevision(History):
    """One change of one limit, append-only. ``before`` and ``after`` hold the fields that changed;
    before is empty for a new limit, after for one that was deleted, which the revision outlives.
    Both are empty where somebody tried and was refused; of a new limit ``limit_id`` is 0 then."""

    limit_id = models.BigIntegerField(db_index=True)
    scope = models.CharField(max_length=500)
    at = models.DateTimeField(default=timezone.now)
    by = models.CharField(max_length=200)
    source = models.CharField(max_length=20)
    reason = models.CharField(max_length=500, blank=True, default="")
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)

    class Meta:
        ordering = ["-at", "-id"]
        verbose_name = "revision of a limit"
        verbose_name_plural = "revisions of limits"

    @classmethod
    def note(
        cls, limit: Limit, before: Mapping[str, Any], *, by: str, source: str, reason: str
    ) -> LimitRevision | None:
        """Write down how a limit that was just saved differs from ``before``, which ``written``
        told of it; ``{}`` of a new one. None if it does not."""
        after = written(limit)
        names = [name for name in after if not before or before.get(name) != after[name]]
        if not names:
            return None
        made: LimitRevision = cls.objects.create(
            limit_id=limit.pk,
            scope=limit.scope_text[:500],
            by=by[:200],
            source=source,
            reason=reason.strip()[:REASON_LENGTH],
            before={name: before[name] for name in names} if before else {},
            after={name: after[name] for name in names},
        )
        return made

    @classmethod
    def note_removal(cls, limit: Limit, number: int, *, by: str, source: str) -> None:
        """Write down what a limit said that was just deleted; ``number`` was its id."""
        cls.objects.create(
            limit_id=number, scope=limit.scope_text[:500], by=by[:200], source=source,
            before=written(limit),
        )  # fmt: skip

    @classmethod
    def note_refusal(cls, limit: Limit | None, *, by: str, source: str) -> None:
        """Write down that somebody tried to change a limit, or to make one, and was refused."""
        cls.objects.create(
            limit_id=0 if limit is None else limit.pk,
            scope="a new limit" if limit is None else limit.scope_text[:500],
            by=by[:200],
            source=source,
        )

    def __str__(self) -> str:
        return f"{self.scope} {self.at:%Y-%m-%d %H:%M} by {self.by}"


def written(limit: Limit) -> dict[str, Any]:
    """What a limit says, as JSON has it: what its revisions compare."""
    found = {}
    for field in limit._meta.concrete_fields:
        if field.name not in NOT_SAID:
            value = getattr(limit, field.attname)
            found[field.name] = value.isoformat() if isinstance(value, dt.datetime) else value
    return found
