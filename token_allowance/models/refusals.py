"""What was refused: counted by minute, because a loop that is refused must not fill a table."""

from __future__ import annotations

from django.db import models

from token_allowance import limits
from token_allowance.models.fields import identifier


class Refusal(models.Model):
    """How many calls were refused in one minute, for one reason, of one target.

    ``code`` is why: ``exhausted``, ``held``, ``too_large`` or ``cap``, else the code of the error.
    ``key`` is the counter of the budget that refused, or the scope of a switch or cap. Where one
    minute has too many users or models to tell apart, they are counted together, as "".
    """

    starts_at = models.DateTimeField()
    code = models.CharField(max_length=64)
    key = models.TextField(blank=True, default="")
    tenant = identifier()
    user = identifier()
    feature = identifier()
    provider = models.CharField(max_length=64, blank=True, default="")
    model = models.CharField(max_length=limits.IDENTIFIER_LENGTH, blank=True, default="")
    calls = models.BigIntegerField(default=0)
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()

    class Meta:
        ordering = ["-starts_at", "code"]
        indexes = [
            models.Index(  # what one switch has refused, however long it stands
                fields=["key", "starts_at"],
                condition=models.Q(code="switch_engaged"),
                name="allowance_refusal_switch",
            )
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["starts_at", "code", "key", "tenant", "user", "feature", "provider",
                        "model"],
                name="allowance_refusal_once",
            )
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.calls} refused: {self.code} {self.starts_at:%Y-%m-%d %H:%M}"
