"""What serves a call instead, once a budget has reached its degrade level."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from token_allowance import limits
from token_allowance.models.fields import identifier


class DegradeRule(models.Model):
    """Serve calls of ``from_model`` with ``to_model`` of the same provider, or shorter answers.

    ``from_model`` ``*`` is every model. A rule that names a feature goes before one that does not,
    and a model's own before every model's. ``to_model`` empty keeps the model.
    """

    from_model = models.CharField(max_length=limits.IDENTIFIER_LENGTH)
    to_model = models.CharField(max_length=limits.IDENTIFIER_LENGTH, blank=True, default="")
    max_output_tokens = models.PositiveIntegerField(null=True, blank=True)
    feature = identifier()
    is_active = models.BooleanField(default=True)

    class Meta:
        ordering = ["from_model", "feature"]
        constraints = [
            models.UniqueConstraint(
                fields=["from_model", "feature"],
                condition=Q(is_active=True),
                name="allowance_degrade_once",
                violation_error_message="A rule for this model and feature is in force already.",
            ),
            models.CheckConstraint(
                condition=~Q(to_model="") | Q(max_output_tokens__isnull=False),
                name="allowance_degrade_does_something",
            ),
        ]

    def __str__(self) -> str:
        shorter = f", at most {self.max_output_tokens} tokens" if self.max_output_tokens else ""
        of = f" of {self.feature}" if self.feature else ""
        every = self.from_model == limits.EACH
        whose = f"{'every model' if every else self.from_model}{of}"
        return f"{whose} → {self.to_model or 'the same'}{shorter}"
