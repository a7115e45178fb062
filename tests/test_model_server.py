"""The ledger beside the counts of a real language-model server, which knows nothing of ours.

llama.cpp's `/metrics` are the truth: prompt tokens computed and taken from its cache, and tokens
generated, also those of answers that nobody waited for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.request import Request, urlopen

import anthropic
import openai
import pytest
from django.utils import timezone

from tests import language_model
from tests.language_model import MODEL, LanguageModel
from tests.metering import within
from token_allowance import allowance, conf
from token_allowance.exceptions import AllowanceExceeded
from token_allowance.models import Limit, Price, Reservation

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(bool(language_model.lacking()), reason=language_model.lacking()),
]

QUESTIONS = (
    "Write three sentences about the harbour of Lisbon in the early morning.",
    "List the largest lakes of Finland, from north to south, and say how deep each is.",
)
MAX_TOKENS = 8
LONG_TOKENS = 300  # of an answer that is cut
CUT_AFTER = 5
ROOM = 100_000
PARTIES = 3
DELIVERED_MOST = 4  # ledger tokens for each that the cut answer had


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    server = LanguageModel()
    yield server
    server.stop()


@pytest.fixture
def limit() -> Limit:
    for provider in ("openai", "anthropic"):
        rates = {"input_mtok": 1, "cache_read_mtok": Decimal("0.5"), "output_mtok": 2}
        Price.objects.create(provider=provider, model=MODEL, **rates)
    return Limit.objects.create(window="total", unit="tokens", amount=ROOM)


@dataclass(frozen=True)
class Way:
    """How one API of one SDK asks, and which part of its stream is text."""

    client: Callable[[LanguageModel], Any]
    ask: Callable[..., Any]
    piece: Callable[[Any], str]
    reports_input_first: bool = False


def gpt(model: LanguageModel) -> openai.OpenAI:
    return openai.OpenAI(api_key="any", base_url=f"{model.url}/v1", max_retries=0)


def claude(model: LanguageModel) -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key="any", base_url=model.url, max_retries=0)


def chat(client: openai.OpenAI, text: str, most: int, **options: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    asked = {"model": MODEL, "messages": messages, "max_tokens": most, **options}
    return client.chat.completions.create(**asked)


def respond(client: openai.OpenAI, text: str, most: int, **options: Any) -> Any:
    return client.responses.create(model=MODEL, input=text, max_output_tokens=most, **options)


def message(client: anthropic.Anthropic, text: str, most: int, **options: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    asked = {"model": MODEL, "messages": messages, "max_tokens": most, **options}
    return client.messages.create(**asked)


WAYS = {
    "chat": Way(gpt, chat, lambda event: event.choices[0].delta.content or ""),
    "responses": Way(
        gpt, respond, lambda e: e.delta if e.type == "response.output_text.delta" else ""
    ),
    "messages": Way(
        claude, message, lambda e: e.delta.text if e.type == "content_block_delta" else "", True
    ),
}


def final_rows() -> list[Reservation]:
    """The ledger in order, once nothing is open."""
    assert within(lambda: not Reservation.objects.filter(state="reserved").exists())
    return list(Reservation.objects.order_by("created_at"))


def spent(rows: list[Reservation]) -> tuple[int, int, int]:
    """(input, of it cached, output) tokens of the ledger."""
    read = sum(row.cache_read_tokens for row in rows)
    return sum(row.input_tokens for row in rows), read, sum(row.output_tokens for row in rows)


def counted(before: dict[str, int], after: dict[str, int]) -> tuple[int, int, int]:
    """(input, of it cached, output) tokens of the server."""
    moved = {name: after[name] - before[name] for name in before}
    cached = moved["prompt_tokens_cached_total"]
    return moved["prompt_tokens_total"] + cached, cached, moved["tokens_predicted_total"]


def tokens_of(model: LanguageModel, text: str) -> int:
    body = json.dumps({"content": text}).encode()
    asked = Request(f"{model.url}/tokenize", body, {"content-type": "application/json"})
    with urlopen(asked, timeout=10) as answer:
        return len(json.load(answer)["tokens"])


def note(name: str, rows: list[Reservation]) -> None:
    """For the report of the run (`-rP`): what was estimated beside what was reported."""
    for row in rows:
        sys.stdout.write(
            f"{name}: {row.reserved_tokens} tokens held, {row.input_tokens} "
            f"(of them cached {row.cache_read_tokens}) + {row.output_tokens} used, "
            f"{row.state} {' '.join(row.flags)}\n"
        )


@pytest.mark.parametrize("name", WAYS)
def test_the_ledger_has_the_tokens_that_the_server_counted(model, limit, name):
    way = WAYS[name]
    with way.client(model) as original:
        client = allowance.meter(original)
        before = model.metrics()
        asked = (*QUESTIONS, QUESTIONS[0])
        for text in asked:
            way.ask(client, text, MAX_TOKENS)
            list(way.ask(client, text, MAX_TOKENS, stream=True))
    rows = final_rows()
    note(name, rows)
    assert [(row.state, row.flags) for row in rows] == [("settled", [])] * 6
    assert spent(rows) == counted(before, model.metrics())
    assert spent(rows)[1] > 0  # a question asked twice is read from the server's cache
    for row, text in zip(rows, [q for q in asked for _ in range(2)], strict=True):
        assert row.reserved_tokens >= tokens_of(model, text) + MAX_TOKENS
    assert [b.used for b in allowance.remaining()] == [spent(rows)[0] + spent(rows)[2]]


def test_the_ledger_of_many_calls_at_once_has_what_the_server_counted(model, limit):
    def party(number: int) -> None:
        way = list(WAYS.values())[number % len(WAYS)]
        text = f"{QUESTIONS[number % 2]} My number is {number}."
        with way.client(model) as original, allowance.charge_to(user=f"u{number}"):
            client = allowance.meter(original)
            way.ask(client, text, MAX_TOKENS)
            list(way.ask(client, text, MAX_TOKENS, stream=True))

    before = model.metrics()
    with ThreadPoolExecutor(PARTIES) as pool:
        list(pool.map(party, range(PARTIES)))
    rows = final_rows()
    note("at once", rows)
    assert len(rows) == 2 * PARTIES
    assert spent(rows) == counted(before, model.metrics())
    assert conf.store().rebuild(timezone.now()) == []


@pytest.mark.parametrize("name", WAYS)
def test_a_stream_cut_in_the_middle_is_charged_within_bounds(model, limit, name):
    way = WAYS[name]
    before = model.metrics()
    with way.client(model) as original:
        events = way.ask(allowance.meter(original), QUESTIONS[0], LONG_TOKENS, stream=True)
        pieces: list[str] = []
        for event in events:
            pieces += filter(None, [way.piece(event)])
            if len(pieces) == CUT_AFTER:
                break
        events.close()
    (row,) = final_rows()
    note(f"{name}, cut", [row])
    real_input, cached, generated = counted(before, model.metrics())
    assert (row.state, row.flags) == ("settled", ["interrupted"])
    assert len(pieces) == CUT_AFTER
    assert generated < LONG_TOKENS  # the server has noticed too
    delivered = tokens_of(model, "".join(pieces))
    assert delivered <= row.output_tokens <= DELIVERED_MOST * max(delivered, generated)
    if way.reports_input_first:
        assert (row.input_tokens, row.cache_read_tokens) == (real_input, cached)
    else:
        assert tokens_of(model, QUESTIONS[0]) <= row.input_tokens < 2 * real_input


@pytest.mark.parametrize("name", WAYS)
def test_a_spent_budget_stops_the_server(model, limit, name):
    way = WAYS[name]
    with way.client(model) as original:
        client = allowance.meter(original)
        way.ask(client, QUESTIONS[0], MAX_TOKENS)
        limit.amount = sum(b.used for b in allowance.remaining()) + MAX_TOKENS
        limit.save()
        before = model.metrics()
        for stream in (False, True):
            with pytest.raises(AllowanceExceeded):
                way.ask(client, QUESTIONS[1], MAX_TOKENS, stream=stream)
    assert model.metrics() == before
    assert len(final_rows()) == 1


def test_usage_is_asked_for_and_hidden_from_a_caller_who_did_not_ask(model, limit):
    shapes = []
    with gpt(model) as plain:
        for client in (plain, allowance.meter(plain)):
            events = list(chat(client, QUESTIONS[0], MAX_TOKENS, temperature=0, stream=True))
            shapes.append([(len(e.choices), e.usage, e.choices[0].finish_reason) for e in events])
        asked = {"include_usage": True}
        client = allowance.meter(plain)
        events = list(chat(client, QUESTIONS[0], MAX_TOKENS, stream=True, stream_options=asked))
    assert shapes[0] == shapes[1]
    assert {usage for _, usage, _ in shapes[1]} == {None}
    first, second = final_rows()
    assert (first.state, first.flags, first.output_tokens) == ("settled", [], MAX_TOKENS)
    usage = events[-1].usage
    assert (second.input_tokens, second.output_tokens) == (
        usage.prompt_tokens,
        usage.completion_tokens,
    )
