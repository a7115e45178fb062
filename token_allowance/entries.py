"""Ledger rows as values: how a reservation begins and how it ends, as JSON has them."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Iterable
from decimal import Decimal
from uuid import UUID

from django.utils import timezone

from token_allowance.limits import Amounts
from token_allowance.money import MAX_MICROS
from token_allowance.plans import Plan
from token_allowance.pricing import Cost, ModelPrice
from token_allowance.stores.base import Row
from token_allowance.usage import Usage


def new_id() -> UUID:
    """A UUIDv7: 48 bits of milliseconds, then 74 random bits."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10))
    high, low = random >> 68, random & ((1 << 62) - 1)
    return UUID(int=milliseconds << 80 | 7 << 76 | high << 64 | 2 << 62 | low)


def begun(id: UUID, plan: Plan, trace_id: str, created_at: dt.datetime, run_path: str = "") -> Row:
    """The row of a call that is in flight."""
    moment = created_at.isoformat()
    return {
        "id": str(id),
        "idempotency_key": plan.attempt.idempotency_key,
        "trace_id": trace_id,
        "run_path": run_path,
        **plan.attribution.as_dict(),
        "provider": plan.attempt.provider,
        "model": plan.model,
        "requested_model": plan.attempt.asked_model or plan.attempt.model,
        "state": "reserved",
        "flags": list(plan.flags),
        "reserved_micros": plan.amounts.cost_micros,
        "reserved_tokens": plan.amounts.tokens,
        "cost_micros": None,
        "cost_exact": None,
        "input_tokens": 0,
        "output_tokens": 0,
        "cache_read_tokens": 0,
        "cache_write_tokens": 0,
        "reasoning_tokens": 0,
        "usage": None,
        "raw_usage": None,
        "price": plan.price.as_dict() if plan.price else None,
        "provider_request_id": "",
        "deferred_id": "",
        "holds": [
            [b.held_in, b.limit.unit.value, plan.amounts.of(b.limit.unit)] for b in plan.budgets
        ],
        "created_at": moment,
        "settled_at": None,
        "expires_at": moment,
    }


def ended(
    state: str,
    flags: Iterable[str],
    usage: Usage,
    price: ModelPrice | None,
    actual: Amounts,
    priced: Cost | None,
) -> Row:
    """The columns that the end of a call sets.

    Counts beyond what a column holds are cut, so that all tokens are those of ``actual``.
    """
    input_tokens = min(MAX_MICROS, usage.input_tokens)
    output_tokens = min(MAX_MICROS - input_tokens, usage.output_tokens)
    if usage.total_tokens > MAX_MICROS:
        flags = {*flags, "anomaly"}
    exact: Decimal | int | None = actual.cost_micros
    if priced and priced.micros == actual.cost_micros:
        exact = priced.exact
    return {
        "state": state,
        "flags": list(flags),
        "cost_micros": actual.cost_micros if state == "settled" else None,
        "cost_exact": str(exact) if state == "settled" and exact is not None else None,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "cache_read_tokens": min(MAX_MICROS, usage.cache_read_tokens),
        "cache_write_tokens": min(MAX_MICROS, usage.cache_write_tokens),
        "reasoning_tokens": min(MAX_MICROS, usage.reasoning_tokens),
        "usage": usage.as_dict() or None,
        "raw_usage": None,
        "price": price.as_dict() if price else None,
        "settled_at": timezone.now().isoformat(),
    }
