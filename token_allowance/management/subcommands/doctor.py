"""``doctor``: is everything in place that makes a budget hold?"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core.management.base import CommandError, OutputWrapper
from django.db import connections, router
from django.db.models import Q
from django.utils import timezone

from token_allowance import conf, limits
from token_allowance.drills import plan
from token_allowance.exceptions import StoreUnavailable
from token_allowance.management import drilled, ladders, looked, told
from token_allowance.models import (
    DeadLetter,
    Limit,
    ModelAlias,
    PendingSettlement,
    Price,
    Reservation,
)
from token_allowance.prices import matching

HELP = "Look for what would keep a budget from holding; fails if something is broken."
SHOWN = 20
BEHIND_SECONDS = 60
MIDDLEWARE = "token_allowance.middleware.AllowanceMiddleware"

Finding = tuple[str, str]  # ok, warning or problem; a sentence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(out: OutputWrapper, options: dict[str, Any]) -> None:
    problems = 0
    if missing_tables():
        raise CommandError("The tables are missing: run manage.py migrate.")
    for check in CHECKS:
        for level, text in check():
            problems += level == "problem"
            out.write(f"{level:8} {text}")
    if problems:
        noun = "problem" if problems == 1 else "problems"
        raise CommandError(f"{problems} {noun} found.")


def missing_tables() -> bool:
    """Whether the tables of some of our models are not in the database that they are read from."""
    wanted = apps.get_app_config("token_allowance").get_models()
    return any(
        model._meta.db_table not in tables(router.db_for_read(model))
        for model in wanted
        if model._meta.managed
    )


def tables(alias: str) -> list[str]:
    return connections[alias].introspection.table_names()


def settings() -> Iterator[Finding]:
    found = conf.problems(getattr(django_settings, conf.NAME, {}))
    yield from (("problem", text) for text in found)
    if not found and conf.current().MODE == "observe":
        yield "warning", "MODE is observe: nothing is refused."
    elif not found:
        yield "ok", "The settings can be used; MODE is enforce."


def store() -> Iterator[Finding]:
    probe = limits.open_budget(limits.Limit(), {}, timezone.now())
    try:
        conf.store().usage([probe])
        wrong = conf.store().check()
    except (StoreUnavailable, conf.ConfigurationError, ImportError) as error:
        yield "problem", f"The store cannot be asked: {error}"
        return
    yield from (("problem", text) for text in wrong)
    if not wrong:
        yield "ok", f"{type(conf.store()).__name__} answers."


def outbox() -> Iterator[Finding]:
    """Is the ledger level with a store that is not its own database?"""
    try:
        behind = conf.store().behind_seconds()
    except (StoreUnavailable, conf.ConfigurationError, ImportError):
        return  # said above
    if behind is not None and behind > BEHIND_SECONDS:
        yield (
            "problem",
            f"The ledger is {behind:,.0f} seconds behind the store: run manage.py allowance drain "
            "--loop, or Celery's beat with token_allowance.tasks.BEAT_SCHEDULE.",
        )
    elif behind is not None:
        yield "ok", f"The ledger is {behind:,.1f} seconds behind the store."
    if dead := DeadLetter.objects.count():
        yield "problem", f"Events that could not be written into the ledger: {dead:,} dead letters."
    if unapplied := PendingSettlement.objects.count():
        yield "warning", f"Settlements that the store could not be told yet: {unapplied:,}."


def middleware() -> Iterator[Finding]:
    installed = list(django_settings.MIDDLEWARE)
    if MIDDLEWARE not in installed:
        yield "warning", f"MIDDLEWARE has no {MIDDLEWARE}: refusals become server errors."
    elif installed[-1] != MIDDLEWARE:
        yield "warning", f"{MIDDLEWARE} is not the last of MIDDLEWARE."
    else:
        yield "ok", "The middleware is the last one."


def active_limits() -> Iterator[Finding]:
    unexpired = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    count = Limit.objects.filter(unexpired, is_active=True).count()
    if count:
        yield "ok", f"{count:,} limits are active." if count > 1 else "One limit is active."
    else:
        yield "warning", "No limit is active: every call is admitted."


def empty_limits() -> Iterator[Finding]:
    for limit in Limit.objects.filter(is_active=True, amount=0)[:SHOWN]:
        unit = " Its amount is in millionths of a dollar." if limit.unit == limits.Unit.COST else ""
        yield "warning", f"{limit}: it admits nothing.{unit}"


def nameless_tenants() -> Iterator[Finding]:
    """Users and sessions come with the request; a tenant must be named by someone."""
    count = Limit.objects.filter(is_active=True).exclude(tenant="").count()
    if conf.problems(getattr(django_settings, conf.NAME, {})) or not count:
        return
    if conf.current().ATTRIBUTION is None and "tenant" not in conf.current().TRUSTED_HEADERS:
        look = "limits look" if count > 1 else "limit looks"
        yield (
            "warning",
            f"{count:,} {look} at the tenant, and nothing names a tenant for requests: set "
            "ATTRIBUTION or TRUSTED_HEADERS, or wrap each call in charge_to(tenant=...).",
        )


def only_sessions() -> Iterator[Finding]:
    """A visitor makes a new session at will, so a session limit alone holds nobody (case C92)."""
    active = Limit.objects.filter(is_active=True)
    people = active.exclude(user="", tenant="")
    if active.exclude(session="").exists() and not people.filter(session="").exists():
        yield (
            "warning",
            "Sessions are limited, and neither users nor tenants: whoever drops a cookie starts "
            "afresh. Add a limit for each user or tenant.",
        )


def prices() -> Iterator[Finding]:
    if Price.objects.exclude(provider=plan.NAME).exists():
        yield "ok", "There are prices."
    else:
        yield "problem", "There are no prices: run manage.py allowance sync-prices."
    for alias in ModelAlias.objects.order_by("alias"):
        if not matching.priced(alias.model, alias.provider):
            yield "problem", f"Alias {alias.alias} stands for a model without a price: {alias}."


def unpriced_limits() -> Iterator[Finding]:
    named = Limit.objects.filter(is_active=True, unit=limits.Unit.COST)
    for limit in named.exclude(model__in=["", limits.EACH]):
        if not matching.priced(limit.model):
            yield "problem", f"{limit}: model {limit.model} has no price."


def unpriced_calls() -> Iterator[Finding]:
    for provider, model, count in matching.unpriced_calls(timezone.now()):
        yield "problem", f"{provider} {model} has no price; calls in 7 days: {count:,}."


def observed_calls() -> Iterator[Finding]:
    """What enforcing would have meant, among the newest calls (case C89)."""
    since = timezone.now() - matching.LOOKED_BACK
    newest = Reservation.objects.filter(created_at__gte=since).order_by("-created_at")
    calls = Reservation.objects.filter(pk__in=newest.values("pk")[: matching.LOOKED_AT])
    refused = calls.filter(flags__icontains='"would_refuse"').count()
    nameless = calls.filter(flags__icontains='"unattributed"').count()
    if refused or nameless:
        yield (
            "warning",
            f"Calls in 7 days that would have been refused: {refused:,}; that name nobody: "
            f"{nameless:,}. The admin lists them by flag (would refuse, unattributed).",
        )


def last_drill() -> Iterator[Finding]:
    """Does the kill switch work? Only who has tried knows."""
    with suppress(StoreUnavailable, conf.ConfigurationError, ImportError):  # said above
        yield drilled.finding(timezone.now())


CHECKS = (
    settings,
    store,
    outbox,
    middleware,
    active_limits,
    empty_limits,
    nameless_tenants,
    only_sessions,
    prices,
    unpriced_limits,
    unpriced_calls,
    ladders.idle,
    ladders.unpriced,
    ladders.dear,
    observed_calls,
    last_drill,
    told.findings,
    looked.findings,
)
