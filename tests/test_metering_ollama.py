"""Calls of Ollama's own API through a metered HTTP client, as any library makes them."""

from __future__ import annotations

import json

import httpx2
import pytest

from project.provider import Reply
from tests.metering import Lab
from token_allowance import allowance
from token_allowance.exceptions import AllowanceExceeded
from token_allowance.providers.ollama import Ollama

pytestmark = pytest.mark.django_db(transaction=True)

CHAT = {
    "model": "llama3.2",
    "messages": [{"role": "user", "content": "why is the sky blue?"}],
    "options": {"num_predict": 100},
}
ESTIMATED = Ollama().request(CHAT).input_tokens


@pytest.fixture
def lab():
    with Lab() as lab:
        lab.price("ollama", "llama3.2", 1, 2)
        yield lab


@pytest.fixture
def client(lab):
    with httpx2.Client(base_url=lab.provider.anthropic_url) as http:
        yield allowance.meter(http)


def lines(client, body=CHAT, path="/api/chat"):
    with client.stream("POST", path, json=body) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in response.iter_lines()]


def test_a_stream_is_passed_on_and_settled_by_its_last_line(lab, client):
    lab.provider.script(default=Reply(text="Rayleigh scattering", input_tokens=26, output_tokens=9))
    *parts, last = lines(client)
    text = "".join(part["message"]["content"] for part in parts)
    assert (text, last["done"], last["eval_count"]) == ("Rayleigh scattering", True, 9)
    row = lab.row()
    assert (row.provider, row.model, row.state, row.flags) == (
        *("ollama", "llama3.2", "settled"),
        [],
    )
    assert (row.input_tokens, row.output_tokens, row.cost_micros) == (26, 9, 26 + 2 * 9)
    assert row.reserved_micros == ESTIMATED + 2 * 100


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_whole_answer_is_settled_by_its_counts(lab, client, path):
    lab.provider.script(default=Reply(input_tokens=26, output_tokens=9))
    asked = {**CHAT, "prompt": "why?"} if path == "/api/generate" else CHAT
    answer = client.post(path, json={**asked, "stream": False}).json()
    assert answer["done"] is True
    assert lab.row().cost_micros == 44


@pytest.mark.parametrize("stream", [True, False])
def test_case_c32_a_prompt_left_out_is_charged_as_estimated(lab, client, stream):
    lab.provider.script(default=Reply(usage={"eval_count": 42}))
    client.post("/api/chat", json={**CHAT, "stream": stream}).read()
    row = lab.row()
    assert (row.state, row.flags) == ("settled", ["input_missing"])
    assert (row.input_tokens, row.output_tokens) == (ESTIMATED, 42)


def test_case_c32_a_stream_without_its_last_object_is_interrupted(lab, client):
    lab.provider.script(default=Reply(text="Rayleigh scattering", chunks=3, drop_after_chunks=2))
    with pytest.raises(httpx2.RemoteProtocolError):
        lines(client)
    row = lab.row()
    assert (row.state, row.flags, row.input_tokens) == ("settled", ["interrupted"], ESTIMATED)
    assert 0 < row.output_tokens < 100


def test_an_error_in_the_stream_is_charged_for_what_came_before_case_c34(lab, client):
    lab.provider.script(default=Reply(text="Rayleigh", chunks=2, error_event_after_chunks=1))
    assert "error" in lines(client)[-1]
    assert set(lab.row().flags) == {"interrupted", "error_partial"}


def test_a_refusal_reaches_the_caller_with_nothing_sent(lab, client):
    lab.shrink("tokens", 1)
    with pytest.raises(AllowanceExceeded):
        client.post("/api/chat", json=CHAT)
    assert (lab.requests(), lab.rows()) == (0, [])
