"""What tests of the dashboard share: people, a history of spending, and what a page must be."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import Permission, User
from django.http import HttpResponse
from playwright.sync_api import Page

from token_allowance import spend
from token_allowance.models import HourlySpend, Reservation

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; font-src 'self'; base-uri 'none'"
)
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
WIDTHS = {"wide": 1280, "narrow": 360}
PRICES = {"gpt-5-mini": (250, 2_000), "claude-sonnet-5": (3_000, 15_000)}  # micros per 1,000
PROVIDERS = {"gpt-5-mini": "openai", "claude-sonnet-5": "anthropic"}


class StrictPolicy:
    """Middleware: the policy that every page has to live under."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> HttpResponse:
        response: HttpResponse = self.get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response


def person(name: str = "ana", *permissions: str, staff: bool = True, **fields: Any) -> User:
    """Somebody with these permissions of token_allowance, and no others."""
    made = User.objects.create_user(name, password="secret", is_staff=staff, **fields)
    made.user_permissions.set(
        Permission.objects.filter(
            content_type__app_label="token_allowance", codename__in=permissions
        )
    )
    return made


def owner(name: str = "ana") -> User:
    return User.objects.create_superuser(name, password="secret")


def call(at: dt.datetime, **fields: Any) -> Reservation:
    """A ledger row that was settled with its price; not saved."""
    model = fields.pop("model", "gpt-5-mini")
    tokens = {"input_tokens": 1_000, "output_tokens": 200} | {
        name: fields.pop(name) for name in ("input_tokens", "output_tokens") if name in fields
    }
    rates = PRICES.get(model, (0, 0))
    micros = -(-(tokens["input_tokens"] * rates[0] + tokens["output_tokens"] * rates[1]) // 1_000)
    given: dict[str, Any] = {
        "id": uuid.uuid4(), "tenant": "acme", "user": "u_1", "feature": "chat", "model": model,
        "requested_model": model, "provider": PROVIDERS.get(model, "openai"), "state": "settled",
        "reserved_micros": micros, "reserved_tokens": 2_000, "cost_micros": micros,
        "cost_exact": micros, "created_at": at, "settled_at": at + dt.timedelta(seconds=2),
        "expires_at": at + dt.timedelta(minutes=10), **tokens,
    }  # fmt: skip
    return Reservation(**given | fields)


def history(now: dt.datetime, *, days: int = 10, calls: int = 400, seed: int = 1) -> int:
    """Some days of calls of several tenants, rolled up; micro-dollars in all."""
    rng = random.Random(seed)
    rows = [
        call(
            now - dt.timedelta(seconds=rng.uniform(60, days * 86_400)),
            tenant=rng.choice(["acme", "globex", "initech"]),
            user=f"u_{rng.randint(1, 9)}",
            feature=rng.choice(["chat", "agent", "digest"]),
            model=rng.choice(list(PRICES)),
            input_tokens=rng.randint(50, 4_000),
            output_tokens=rng.randint(1, 900),
        )
        for _ in range(calls)
    ]
    Reservation.objects.bulk_create(rows)
    spend.fold(now)
    assert HourlySpend.objects.exists()
    return sum(row.cost_micros or 0 for row in rows)


def sign_in(page: Page, base: str, name: str = "ana") -> None:
    page.goto(f"{base}/admin/login/")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill("secret")
    page.get_by_role("button", name="Log in").click()


def violations(page: Page) -> list[str]:
    """What axe finds against WCAG 2.2 AA, one line each."""
    found = Axe().run(page, options={"runOnly": {"type": "tag", "values": RULES}})
    return [
        f"{one['id']}: {node['html'][:160]} ({node['failureSummary'].splitlines()[-1].strip()})"
        for one in found.response["violations"]
        for node in one["nodes"]
    ]


def scrolls_sideways(page: Page) -> bool:
    wide: bool = page.evaluate(
        "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    )
    return wide
