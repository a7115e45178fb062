"""System checks: what is wrong with a project's settings, with an id and what to do. No query."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DEFAULT_DB_ALIAS, connections

from token_allowance import conf, sdk_imports

MIDDLEWARE = "token_allowance.middleware.AllowanceMiddleware"
SHOWN = 20  # files that W006 names
OR_SILENCE = "If it is metered elsewhere, silence allowance.W006."


def register_all() -> None:
    register(check_settings)
    register(check_middleware)
    register(check_callables)
    register(check_store)
    register(check_database)
    register(check_sdk_imports)
    register(check_production, Tags.security, deploy=True)
    register(check_more_sdk_imports, deploy=True)


def check_settings(**_: Any) -> list[CheckMessage]:
    hint = "token_allowance/conf.py lists every key with its default."
    found = conf.problems(getattr(settings, conf.NAME, {}))
    messages: list[CheckMessage] = [Error(text, hint=hint, id="allowance.E001") for text in found]
    if not settings.USE_TZ:
        text = "token_allowance needs USE_TZ = True: windows begin in a time zone."
        messages.append(Error(text, hint="Set USE_TZ = True.", id="allowance.E002"))
    return messages


def check_middleware(**_: Any) -> list[CheckMessage]:
    if MIDDLEWARE not in settings.MIDDLEWARE:
        return [
            Warning(
                "AllowanceMiddleware is not installed: refusals become status 500, and requests "
                "name nobody to charge.",
                hint=f"Add {MIDDLEWARE!r} as the last of MIDDLEWARE.",
                id="allowance.W001",
            )
        ]
    if settings.MIDDLEWARE[-1] != MIDDLEWARE:
        return [
            Warning(
                "AllowanceMiddleware is not the last middleware: those after it see exceptions and "
                "stream bodies outside of the request's attribution.",
                hint=f"Move {MIDDLEWARE!r} to the end of MIDDLEWARE.",
                id="allowance.W002",
            )
        ]
    return []


def check_callables(**_: Any) -> list[CheckMessage]:
    if conf.problems(getattr(settings, conf.NAME, {})):
        return []  # E001 says what is wrong
    found: list[CheckMessage] = []
    for key in conf.CALLABLES:
        path = getattr(conf.current(), key)
        try:
            usable = path is None or callable(conf.imported(path))
        except ImportError:
            usable = False
        if not usable:
            text = f"{conf.NAME}[{key!r}] is {path!r}, which names nothing that can be called."
            hint = "Give the dotted path of a function, such as 'shop.billing.who_pays'."
            found.append(Error(text, hint=hint, id="allowance.E005"))
    return found


def check_store(**_: Any) -> list[CheckMessage]:
    if conf.problems(getattr(settings, conf.NAME, {})):
        return []  # E001 says what is wrong
    try:
        store = conf.store()
    except Exception as error:
        backend = conf.current().STORE.get("BACKEND")
        text = f"The store {backend!r} cannot be made: {error}"
        return [Error(text, hint="See STORE in token_allowance/conf.py.", id="allowance.E003")]
    if conf.current().WAIT_SECONDS and not store.can_wait:
        text = f"WAIT_SECONDS is set, and {type(store).__name__} cannot wait for room."
        return [Error(text, hint="Set WAIT_SECONDS to 0.", id="allowance.E004")]
    return []


def check_database(**_: Any) -> list[CheckMessage]:
    alias = DEFAULT_DB_ALIAS if check_store() else getattr(conf.store(), "alias", DEFAULT_DB_ALIAS)
    database = connections.settings.get(alias, {})
    engine = database.get("ENGINE", "")
    if not engine.endswith(("sqlite3", "postgresql", "postgis", "postgresql_psycopg2")):
        text = (
            f"DatabaseStore works on PostgreSQL and SQLite; {alias!r} uses {engine or 'nothing'}."
        )
        hint = "If this is an engine of your own on top of one of them, silence this check."
        return [Warning(text, hint=hint, id="allowance.W005")]
    if engine.endswith("sqlite3") and database.get("ATOMIC_REQUESTS"):
        return [
            Warning(
                "ATOMIC_REQUESTS on SQLite: a request that fails rolls back the charges of the "
                "model calls it made.",
                hint="Turn ATOMIC_REQUESTS off, or use PostgreSQL.",
                id="allowance.W003",
            )
        ]
    return []


def check_production(**_: Any) -> list[CheckMessage]:
    if check_store() or conf.problems(getattr(settings, conf.NAME, {})) or conf.store().shared:
        return []
    name = type(conf.store()).__name__
    return [
        Warning(
            f"{name} keeps budgets in one process: every worker has its own.",
            hint="Use DatabaseStore in production.",
            id="allowance.W004",
        )
    ]


def check_sdk_imports(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    return _unmetered(sdk_imports.find(app_configs, stop=sdk_imports.MOST_FILES))


def check_more_sdk_imports(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """The files of a project that is too large for an ordinary check."""
    return _unmetered(sdk_imports.find(app_configs, start=sdk_imports.MOST_FILES))


def _unmetered(found: list[sdk_imports.Found]) -> list[CheckMessage]:
    messages: list[CheckMessage] = []
    for one in found[:SHOWN]:
        hint = "Wrap the client where it is made, allowance.meter(...), and import it from there."
        if one.by_hand:
            hint = "Reserve each call: with allowance.call(...) as call: ... call.record(...)."
        more = ""
        if len(found) > SHOWN and one is found[SHOWN - 1]:
            more = f" {len(found) - SHOWN:,} more files do so."
        text = (
            f"{one.path}:{one.line} imports {one.sdk}, and nothing in that file is metered: what "
            f"it calls passes every budget by.{more}"
        )
        messages.append(Warning(text, hint=f"{hint} {OR_SILENCE}", id="allowance.W006"))
    return messages
