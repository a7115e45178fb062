"""What the provider keeps and reads again is part of the reservation (case C45)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connections

from project.provider import Reply
from tests.metering import ASK, ESTIMATE, GPT, Lab, create
from token_allowance import contexts
from token_allowance.contexts import Context
from token_allowance.estimate.references import Kind, Reference, references
from token_allowance.exceptions import AllowanceExceeded

SHORT = [{"role": "user", "content": "and then? " * 30}]  # 300 characters


@pytest.fixture(autouse=True)
def _forgotten():
    contexts.memory.clear()
    yield
    contexts.memory.clear()


@pytest.fixture
def lab():
    with Lab() as lab:
        yield lab


def carried(body):
    return references(body, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"previous_response_id": "resp_1"}, (Kind.ANSWER, "resp_1")),
        ({"previous_interaction_id": "int_1"}, (Kind.ANSWER, "int_1")),
        ({"conversation": "conv_1"}, (Kind.CONVERSATION, "conv_1")),
        ({"conversation": {"id": "conv_1"}}, (Kind.CONVERSATION, "conv_1")),
        ({"prompt": {"id": "pmpt_1", "variables": {}}}, (Kind.PROMPT, "pmpt_1")),
        ({"cachedContent": "cachedContents/1"}, (Kind.CACHE, "cachedContents/1")),
        ({"input": [{"content": [{"file_id": "file_1"}]}]}, (Kind.FILE, "file_1")),
        ({"tools": [{"vector_store_ids": ["vs_1"]}]}, (Kind.FILES, "vs_1")),
    ],
)
def test_what_is_kept_at_the_provider_is_recognised(body, found):
    assert carried(body) == (found,)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": ASK},
        {"prompt": "a completion's prompt is text"},
        {"conversation": None, "previous_response_id": ""},
        {"previous_response_id": 7, "conversation": {"id": ["no"]}},
        {"previous_response_id": "x" * 201},
        {"messages": [{"content": 'the words "file_id" and "vector_store_ids" in a text'}]},
    ],
)
def test_what_is_sent_in_full_is_no_reference(body):
    assert carried(body) == ()


def test_a_request_is_taken_to_have_no_more_than_a_hundred_references():
    assert len(carried({"files": [{"file_id": f"file_{n}"} for n in range(1_000)]})) == 100


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("continued", ["conversation", "previous_response_id"])
def test_case_c45_of_two_small_calls_on_a_large_context_one_is_admitted(lab, continued):
    lab.provider.script(default=Reply(input_tokens=100_000, output_tokens=0, text="a"))
    with lab.client("openai") as client:
        first = create(client, extra_body={"conversation": "conv_1"})
        if continued == "previous_response_id":
            contexts.memory.clear()  # as in another process: the ledger knows
        lab.shrink("tokens", 100_000 + 150_000)
        lab.provider.script(default=Reply(delay_seconds=1.0, input_tokens=100_100, output_tokens=0))
        kept = {"conversation": "conv_1", "previous_response_id": first.id}[continued]
        results = both(lambda: create(client, messages=SHORT, extra_body={continued: kept}))
    (refused,) = (error for error in results if isinstance(error, AllowanceExceeded))
    assert refused.reserved >= 100_100
    assert refused.needed >= 100_100
    admitted = lab.rows(2)[1]
    assert admitted.reserved_tokens >= 100_100
    assert admitted.flags == []
    assert lab.requests() == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("remembered", [True, False])
def test_case_c45_a_response_that_goes_on_reserves_what_it_goes_on_from(lab, stream, remembered):
    lab.provider.script(default=Reply(input_tokens=100_000, output_tokens=7, text="a"))
    fixed = {"model": GPT, "input": "and then? " * 30, "max_output_tokens": 100, "stream": stream}
    with lab.client("openai") as client:
        first = client.responses.create(**fixed)
        first_id = (
            [e.response.id for e in first if hasattr(e, "response")][-1] if stream else first.id
        )
        if not remembered:
            contexts.memory.clear()
        second = client.responses.create(**fixed, previous_response_id=first_id)
        assert not stream or list(second)
    before, after = lab.rows(2)
    assert before.provider_request_id == first_id
    assert after.reserved_tokens - before.reserved_tokens == 100_007
    assert after.flags == []


@pytest.mark.django_db(transaction=True)
def test_case_c45_an_unknown_context_reserves_a_floor_and_is_flagged(lab):
    with lab.client("openai") as client:
        create(client, extra_body={"prompt": {"id": "pmpt_1"}})
        create(client, extra_body={"prompt": {"id": "pmpt_1"}})
    first, second = lab.rows(2)
    assert first.reserved_tokens == ESTIMATE["openai"].total_tokens + 8_000
    assert first.flags == ["context_unknown"]
    used = first.input_tokens + first.output_tokens
    assert second.reserved_tokens == ESTIMATE["openai"].total_tokens + used
    assert second.flags == []


@pytest.mark.django_db(transaction=True)
def test_the_floor_is_a_setting():
    with Lab(ESTIMATE={"context_floor_tokens": 50_000}) as lab:
        with lab.client("openai") as client:
            create(client, extra_body={"previous_response_id": "resp_of_somebody_else"})
        assert lab.row().reserved_tokens == ESTIMATE["openai"].total_tokens + 50_000
        assert lab.row().flags == ["context_unknown"]


@pytest.mark.django_db(transaction=True)
def test_a_call_without_references_asks_the_ledger_nothing(lab, monkeypatch):
    monkeypatch.setattr(contexts, "context", lambda references: pytest.fail("asked"))
    lab.ask("openai")
    assert lab.row().flags == []


def test_ids_that_one_call_carried_are_counted_once_and_those_of_two_calls_added():
    one, two, three = (Reference(Kind.FILE, f"file_{n}") for n in (1, 2, 3))
    contexts.remember((one, two), "responses", "resp_1", 50_000)
    contexts.remember((three,), "responses", "resp_2", 30_000)
    assert contexts.context((one, two)) == Context(50_000)
    assert contexts.context((one, two, three)) == Context(80_000)
    assert contexts.context((Reference(Kind.ANSWER, "resp_2"),)) == Context(30_000)


def test_only_apis_that_keep_answers_are_remembered_by_answer(monkeypatch):
    monkeypatch.setattr(contexts, "REMEMBERED", 3)
    contexts.remember((), "chat_completions", "chatcmpl-1", 10)
    assert contexts.memory.get(Reference(Kind.ANSWER, "chatcmpl-1")) is None
    for number in range(5):
        contexts.remember((), "responses", f"resp_{number}", number)
    known = [contexts.memory.get(Reference(Kind.ANSWER, f"resp_{n}")) for n in range(5)]
    assert known == [None, None, ("resp_2", 2), ("resp_3", 3), ("resp_4", 4)]


def both(call):
    """Two of them at once: the answers, or the errors."""
    start = Barrier(2)

    def one(_):
        start.wait(5)
        try:
            return call()
        except AllowanceExceeded as error:
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))
