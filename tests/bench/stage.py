"""The servers and the Django that are measured: PostgreSQL, SQLite, Redis, and a provider."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from project.provider import FIXED_COST, ProviderProcess
from tests import servers

OPENAI_MODEL = "gpt-5-mini"
ANTHROPIC_MODEL = "claude-sonnet-5"
FULL = "a feature that may make no call"
PLENTY = 10**15
DURABLE = "PostgreSQL"
RELAXED = "PostgreSQL, commits not awaited"  # what metering costs beside the disk
DURABLY = ("-c", "fsync=on", "-c", "synchronous_commit=on", "-c", "full_page_writes=on")
STORES: dict[str, tuple[str, dict[str, Any]]] = {
    DURABLE: ("database.DatabaseStore", {"alias": "default"}),
    RELAXED: ("database.DatabaseStore", {"alias": "relaxed"}),
    "SQLite": ("database.DatabaseStore", {"alias": "sqlite"}),
    "Redis": ("redis.RedisStore", {}),
    "memory": ("memory.MemoryStore", {}),
}


@contextmanager
def stage() -> Iterator[ProviderProcess]:
    """Everything is up inside the block; the provider answers at once, at a fixed cost."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="allowance-bench-")))
        postgres = servers.Postgres(*DURABLY)
        stack.callback(postgres.stop)
        redis = servers.Redis()
        stack.callback(redis.stop)
        STORES["Redis"][1]["URL"] = redis.url
        _begin_django(postgres.url, folder)
        stack.callback(_close_connections)
        provider = stack.enter_context(ProviderProcess())
        provider.script(default=FIXED_COST)
        yield provider


@contextmanager
def using(store: str) -> Iterator[None]:
    """Meter with this store; its budgets start empty."""
    from django.test import override_settings

    name, options = STORES[store]
    chosen = {"BACKEND": f"token_allowance.stores.{name}", "OPTIONS": options}
    with override_settings(TOKEN_ALLOWANCE={"STORE": chosen}):
        yield


def _begin_django(url: str, folder: Path) -> None:
    os.environ["DATABASE_URL"] = url
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    import django
    from django.conf import settings

    settings.DATABASES["sqlite"] = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": folder / "sqlite3",
        "OPTIONS": {"timeout": 5},
    }
    settings.DATABASES["relaxed"] = {
        **settings.DATABASES["default"],
        "OPTIONS": {"options": "-c synchronous_commit=off"},
    }
    django.setup()
    from django.core.management import call_command

    for alias in ("default", "sqlite"):
        call_command("migrate", database=alias, verbosity=0)
        _decide(alias)


def _decide(alias: str) -> None:
    """Four budgets for every call, of four shapes, with room for ever; and one that is full."""
    from token_allowance.models import Limit, Price

    prices, limits = Price.objects.using(alias), Limit.objects.using(alias)
    for provider, model in (("openai", OPENAI_MODEL), ("anthropic", ANTHROPIC_MODEL)):
        rates = {"input_mtok": Decimal(1), "output_mtok": Decimal(4)}
        prices.create(provider=provider, model=model, **rates)
    limits.create(tenant="*", window="day", unit="cost", amount=PLENTY)
    limits.create(tenant="*", user="*", window="hour", unit="tokens", amount=PLENTY)
    limits.create(feature="*", window="month", unit="calls", amount=PLENTY)
    limits.create(feature=FULL, window="month", unit="calls", amount=0)
    limits.create(window="day", unit="cost", amount=PLENTY)


def _close_connections() -> None:
    from django.db import connections

    from token_allowance.stores.connections import own

    connections.close_all()
    for alias in ("default", "relaxed", "sqlite"):
        own(alias).close()
