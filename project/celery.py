"""The demo project's Celery app: a worker is `celery -A project worker`, beat adds `-B`."""

from __future__ import annotations

import os

from celery import Celery

from token_allowance.tasks import BEAT_SCHEDULE

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

app = Celery("project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.beat_schedule = BEAT_SCHEDULE
app.autodiscover_tasks()
