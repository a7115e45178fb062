"""The ladder on every store: in turn, awaited, and raced for by processes."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter as Tally
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from project.provider import FIXED_COST, Provider
from tests import callers
from tests.descending import AMOUNT, BIG, CALL_TOKENS, LEVEL, SMALL
from token_allowance import allowance, conf
from token_allowance.exceptions import AllowanceExceeded
from token_allowance.models import DegradeRule, Limit, Price, Reservation
from token_allowance.usage import Usage

PROCESSES = 4
DEADLINE_SECONDS = 60


@pytest.fixture(scope="module")
def descending() -> Iterator[callers.Callers]:
    with callers.running("tests.descending") as made:
        yield made


def rules(alias: str, amount: int) -> Limit:
    for model in (BIG, SMALL):
        Price.objects.using(alias).create(
            provider="openai", model=model, input_mtok=Decimal(1), output_mtok=Decimal(1)
        )
    DegradeRule.objects.using(alias).create(from_model=BIG, to_model=SMALL)
    return Limit.objects.using(alias).create(user="*", window="total", unit="tokens", amount=amount)


def call() -> allowance.call:
    return allowance.call(
        provider="openai", model=BIG, input_tokens=5, max_output_tokens=5, user="u"
    )


def outcome() -> str:
    """One call of ten tokens: the model that it was told to ask, or that it was refused."""
    try:
        with call() as made:
            made.record(Usage(5, 5))
    except AllowanceExceeded:
        return "refused"
    return made.model


async def awaited() -> str:
    try:
        async with call() as made:
            made.record(Usage(5, 5))
    except AllowanceExceeded:
        return "refused"
    return made.model


CLIMB = [BIG] * 9 + [SMALL, "refused"]


def test_a_budget_is_climbed_in_turn(database: str) -> None:
    limit = rules(database, 100)
    assert [outcome() for _ in CLIMB] == CLIMB
    limit.amount = 1_000
    limit.save()
    assert outcome() == BIG  # the very next call
    limit.amount = 122  # 90 % are 109.8: reached
    limit.save()
    assert outcome() == SMALL


def test_a_budget_is_climbed_by_a_coroutine(database: str) -> None:
    rules(database, 100)

    async def climb() -> list[str]:
        return [await awaited() for _ in CLIMB]

    assert asyncio.run(climb()) == CLIMB
    conf.store().drain()
    found = Reservation.objects.using(database).order_by("created_at")
    assert [(row.model, row.flags) for row in found] == [(BIG, [])] * 9 + [(SMALL, ["degraded"])]


def test_a_ladder_that_is_made_or_taken_away_holds_at_the_very_next_call(database: str) -> None:
    limit = rules(database, 100)
    for _ in range(9):
        outcome()
    limit.hard_stop_percent = 120
    limit.save()
    rule = DegradeRule.objects.using(database).get()
    seen = [outcome()]
    rule.is_active = False
    rule.save()
    seen.append(outcome())
    assert seen == [SMALL, BIG]


def test_no_full_call_begins_once_its_level_is_reached(
    database: str, descending: callers.Callers, tmp_path: Path
) -> None:
    rules(database, AMOUNT)
    with Provider() as provider:
        provider.script([], default=FIXED_COST)
        answers = [tmp_path / f"{number}.json" for number in range(PROCESSES)]
        for answer in answers:
            descending.start(kind="descend", answer=str(answer), url=provider.openai_url)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not all(answer.exists() for answer in answers):
            assert time.monotonic() < deadline, "the callers have died or do not come to an end"
            time.sleep(0.02)
        seen = sum((Tally(json.loads(answer.read_text())) for answer in answers), Tally())
        sent = Tally(entry.model for entry in provider.log())
    assert seen[f"after {BIG}"] == 0
    assert seen[f"after {SMALL}"] > 0
    assert sent == Tally({BIG: seen[f"before {BIG}"],
                          SMALL: seen[f"after {SMALL}"] + seen[f"before {SMALL}"]})  # fmt: skip
    # Full calls may be in flight when the level is reached: one of each other process.
    assert LEVEL // CALL_TOKENS <= sent[BIG] < LEVEL // CALL_TOKENS + PROCESSES
    assert sent.total() * CALL_TOKENS == AMOUNT
