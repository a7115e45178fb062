from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class TokenAllowanceConfig(AppConfig):
    name = "token_allowance"
    verbose_name = "Token Allowance"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from token_allowance import checks, schema

        post_migrate.connect(schema.install_after_migrate, sender=self)
        checks.register_all()
