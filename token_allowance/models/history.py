"""What history is made of: rows that are added and read, never changed."""

from __future__ import annotations

from typing import Any

from django.db import models

APPEND_ONLY = "History is append-only."


class AppendOnly(models.QuerySet[Any]):
    """Rows that are added and read."""

    def update(self, **kwargs: Any) -> int:
        raise ValueError(APPEND_ONLY)

    def delete(self) -> tuple[int, dict[str, int]]:
        raise ValueError(APPEND_ONLY)


class History(models.Model):
    objects = AppendOnly.as_manager()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise ValueError(APPEND_ONLY)
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        raise ValueError(APPEND_ONLY)
