"""In a process of its own: what metering does with the SDK on its path, as JSON.

``python -m tests.sdk_matrix NAME FOLDER`` prints the version and what each scene left.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import django
from django.conf import settings

from project.provider import Provider, Reply
from tests.sdk_matrix.clients import SDKS, Dialect

ANSWER = Reply(text="Mild and bright.", input_tokens=26, output_tokens=9)
BUSY = Reply(status=429, headers={"retry-after-ms": "1"})
LATEST_SECONDS = 5.0


def prepare(folder: Path) -> None:
    store = {"BACKEND": "tests.sdk_matrix.store.CountingStore"}
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "sqlite3"}
    settings.configure(
        DATABASES={"default": database},
        INSTALLED_APPS=["token_allowance"],
        TOKEN_ALLOWANCE={"STORE": store},
        USE_TZ=True,
    )
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def scenes(dialect: Dialect, provider: Provider) -> dict[str, Any]:
    """What each scene leaves: the answer or error, the requests, the reservations, the rows."""
    from token_allowance import allowance
    from token_allowance.models import Limit, Price

    Price.objects.create(
        provider=dialect.provider,
        model=dialect.model,
        input_mtok=Decimal(1),
        output_mtok=Decimal(2),
    )
    limit = Limit.objects.create(window="total", unit="cost", amount=1_000_000)
    url = provider.anthropic_url
    one = dialect.client(url, allowance.meter, False)
    with asyncio.Runner() as loop:
        many = loop.run(_make(dialect, url, allowance.meter))
        ways: dict[str, Callable[[], str]] = {
            "plain": lambda: dialect.plain(one),
            "stream": lambda: dialect.stream(one),
            "async": lambda: loop.run(dialect.aplain(many)),
            "async stream": lambda: loop.run(dialect.astream(many)),
        }
        left = _played(dialect, provider, ways, limit)
        loop.run(dialect.aclose(many))
    return left


async def _make(dialect: Dialect, url: str, meter: Callable[..., Any]) -> Any:
    return dialect.client(url, meter, True)


def _played(
    dialect: Dialect, provider: Provider, ways: dict[str, Callable[[], str]], limit: Any
) -> dict[str, Any]:
    answer = Reply(**{**ANSWER.to_json(), **dialect.reply})
    left: dict[str, Any] = {}
    for name, way in ways.items():
        left[name] = scene(provider, [answer], way)
        if dialect.retries:
            left[f"{name}, retried"] = scene(provider, [BUSY, answer], way)
    limit.amount = 400  # less than is used, more than one call needs
    limit.save()
    for name, way in ways.items():
        left[f"{name}, refused"] = scene(provider, [], way)
    return left


def scene(provider: Provider, replies: list[Reply], way: Callable[[], str]) -> dict[str, Any]:
    from tests.sdk_matrix.store import CountingStore
    from token_allowance.models import Reservation

    Reservation.objects.all().delete()
    provider.reset()
    provider.script(replies, default=Reply(status=500))
    CountingStore.reserves = 0
    text, error = "", ""
    try:
        text = way()
    except Exception as problem:
        error = f"{type(problem).__module__}.{type(problem).__name__}"
    deadline = time.monotonic() + LATEST_SECONDS
    while Reservation.objects.filter(state="reserved").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    rows = Reservation.objects.order_by("created_at").values_list(
        "provider", "state", "flags", "input_tokens", "output_tokens"
    )
    return {
        "text": text,
        "error": error,
        "requests": len(provider.log()),
        "reserves": CountingStore.reserves,
        "rows": [list(row) for row in rows],
    }


def main(name: str, folder: str) -> None:
    prepare(Path(folder))
    with Provider() as provider:
        left = scenes(SDKS[name], provider)
    sys.stdout.write(json.dumps({"version": version(name), "scenes": left}))


main(*sys.argv[1:])
