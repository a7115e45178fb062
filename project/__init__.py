from __future__ import annotations

from contextlib import suppress

with suppress(ModuleNotFoundError):  # Celery is optional
    from project.celery import app as celery_app

__all__ = ["celery_app"]
