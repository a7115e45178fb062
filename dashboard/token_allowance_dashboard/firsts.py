"""The first steps of an installation, with a tick for each that is done."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from token_allowance import conf
from token_allowance.models import Channel, Delivery, Drill, Limit, Price, Reservation
from token_allowance.prices import matching


@dataclass(frozen=True, slots=True)
class Step:
    text: str
    done: bool
    found: str = ""  # what is there already, or what is missing
    code: str = ""  # to copy


def checklist(now: dt.datetime) -> list[Step]:
    """Eight steps, in the order to take them; empty once all are done."""
    first = Reservation.objects.order_by("created_at").first()
    tagged = Reservation.objects.exclude(feature="").exclude(tenant="").exists()
    unpriced = [model for _, model, _ in matching.unpriced_calls(now)]
    priced = Price.objects.exists() and not unpriced
    everywhere = Limit.objects.filter(
        is_active=True, tenant="", user="", session="", feature="", model=""
    ).exists()
    told = Delivery.objects.filter(state="sent").exists()
    drill = Drill.objects.filter(passed=True).first()
    steps = [
        Step("Wrap your client", first is not None, code="client = allowance.meter(OpenAI())"),
        Step(
            "Say who pays",
            tagged,
            code='with allowance.charge_to(tenant="acme", user="u_1", feature="chat"): …',
        ),
        Step(
            "Have a price for each of your models",
            priced,
            found=f"without one: {', '.join(unpriced[:5])}" if unpriced else "",
            code="manage.py allowance sync-prices",
        ),
        Step(
            "See a first call",
            first is not None,
            found=f"{first.feature or 'no feature'} / {first.model}" if first else "",
        ),
        Step(
            "Set one limit for everyone together, in observe mode first",
            everywhere,
            code='Limit.objects.create(window="month", unit="cost", amount=250_000_000, '
            'mode="observe")',
        ),
        Step("Add a channel for alerts, and send a test", Channel.objects.exists() and told),
        Step(
            "Try the kill switch",
            drill is not None,
            found=f"passed {drill.started_at:%-d %b %Y}" if drill else "never drilled",
            code="manage.py allowance drill --tenant internal",
        ),
        Step(
            "Enforce",
            conf.current().MODE == "enforce",
            found=f"MODE is {conf.current().MODE}",
            code='TOKEN_ALLOWANCE = {"MODE": "enforce", …}',
        ),
    ]
    return [] if all(step.done for step in steps) else steps
