from __future__ import annotations

from importlib.util import find_spec

from django.apps import AppConfig
from django.conf import settings
from django.db.models.signals import post_migrate


class TokenAllowanceConfig(AppConfig):
    name = "token_allowance"
    verbose_name = "Token Allowance"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from token_allowance import announcements, checks, exporters, schema

        post_migrate.connect(schema.install_after_migrate, sender=self)
        checks.register_all()
        announcements.connect()
        exporters.connect(getattr(settings, "TOKEN_ALLOWANCE", {}).get("METRICS", ()))
        if find_spec("celery"):
            from token_allowance import jobs

            jobs.connect()
