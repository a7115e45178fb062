"""What the demo starts with: prices, two tenants, three limits, a ladder and one staff login."""

from __future__ import annotations

import os
import secrets
from decimal import Decimal
from io import StringIO

from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from project.demo.offers import OLLAMA_MODEL
from project.demo.people import TENANTS
from project.demo.simulation import CHEAPER_MODELS, FLAT_MODEL, FLAT_SMALL_MODEL
from token_allowance.limits import EACH
from token_allowance.models import DegradeRule, Limit, Price, Tenant

STAFF = "staff"
PROVIDERS = ("openai", "anthropic")
# Dollars per million tokens, input and output, of what no list of prices knows.
OWN_PRICES = {
    ("openai", FLAT_MODEL): ("0", "10"),
    ("openai", FLAT_SMALL_MODEL): ("0", "1"),
}
# What answers once 90 % of a budget are used.
LADDER = {
    **dict(zip(("gpt-5", "claude-sonnet-5"), CHEAPER_MODELS, strict=True)),
    FLAT_MODEL: FLAT_SMALL_MODEL,
}
OLLAMA_PRICE = ("10", "50")
# Only without the package genai-prices.
FEW_PRICES = {
    ("openai", "gpt-5"): ("1.25", "10"),
    ("openai", "gpt-5-mini"): ("0.25", "2"),
    ("anthropic", "claude-sonnet-5"): ("2", "10"),
    ("anthropic", "claude-haiku-4-5"): ("1", "5"),
}


def policy() -> None:
    """Prices, tenants, limits and their ladder. What is there already stays as it is."""
    prices()
    for key, name in TENANTS.items():
        Tenant.objects.get_or_create(key=key, defaults={"name": name})
    for scope, amount in (
        ({"tenant": EACH, "user": EACH, "window": "day", "unit": "cost"}, 500_000),
        ({"tenant": EACH, "window": "day", "unit": "cost"}, 5_000_000),
        ({"tenant": EACH, "feature": "agent", "window": "hour", "unit": "calls"}, 60),
    ):
        nothing = {"user": "", "session": "", "feature": "", "model": "", "plan": ""}
        Limit.objects.get_or_create(**{**nothing, **scope}, defaults={"amount": amount})
    for model, cheaper in LADDER.items():
        DegradeRule.objects.get_or_create(from_model=model, defaults={"to_model": cheaper})


def prices() -> None:
    chosen = [word for provider in PROVIDERS for word in ("--provider", provider)]
    own = dict(OWN_PRICES)
    try:
        call_command("allowance", "sync-prices", *chosen, stdout=StringIO())
    except CommandError:
        own |= FEW_PRICES
    if os.environ.get("OLLAMA_HOST"):
        own["ollama", os.environ.get("OLLAMA_MODEL", OLLAMA_MODEL)] = OLLAMA_PRICE
    for (provider, model), (read, written) in own.items():
        Price.objects.get_or_create(
            provider=provider,
            model=model,
            source=Price.ADMIN,
            effective_from=None,
            defaults={"input_mtok": Decimal(read), "output_mtok": Decimal(written)},
        )


def staff_password() -> str:
    """A new password for the staff login, which is made if it is not there."""
    password = secrets.token_urlsafe(12)
    staff, _ = User.objects.get_or_create(
        username=STAFF, defaults={"is_staff": True, "is_superuser": True}
    )
    staff.set_password(password)
    staff.save()
    return password
