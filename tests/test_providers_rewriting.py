"""What the ladder changes of a request, for each API and each way of asking."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from token_allowance.providers.adapter import Adapter
from token_allowance.providers.endpoints import Endpoint, recognise
from token_allowance.providers.rewriting import Change
from token_allowance.providers.signatures import is_signed

HOSTS = {
    "/v1beta/models": "generativelanguage.googleapis.com",
    "/api/": "127.0.0.1",
    "/v1/messages": "api.anthropic.com",
}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
GEMINI, OLLAMA = "/v1beta/models/gemini-x:generateContent", "/api/chat"
DEPLOYMENT = "/openai/deployments/big/chat/completions"


def adapter(path: str) -> Adapter:
    host = next((host for part, host in HOSTS.items() if part in path), "api.openai.com")
    found = recognise("POST", host, path)
    assert isinstance(found, Endpoint)
    return found.adapter


def rewritten(path: str, body: dict[str, Any], model: str = "", most: int | None = None) -> Any:
    """The fields that differ from what was asked; the body that was given stays as it is."""
    before = copy.deepcopy(body)
    new = adapter(path).rewrite(body, model, most)
    assert body == before
    names = sorted({*new, *body})
    return {n: new.get(n) for n in names if new.get(n) != body.get(n)}


@pytest.mark.parametrize(
    ("given", "model", "most", "changed"),
    [
        # The maximum is put where the caller put it, and where it put none, where the model has it.
        ({"max_tokens": 900}, "gpt-4o-mini", 300, {"model": "gpt-4o-mini", "max_tokens": 300}),
        ({"max_completion_tokens": 900}, "", 300, {"max_completion_tokens": 300}),
        ({}, "gpt-5-nano", 300, {"model": "gpt-5-nano", "max_completion_tokens": 300}),
        ({}, "openai/o4-mini", 300, {"model": "openai/o4-mini", "max_completion_tokens": 300}),
        ({}, "llama-4", 300, {"model": "llama-4", "max_tokens": 300}),
        ({"max_tokens": None}, "llama-4", 300, {"model": "llama-4", "max_tokens": 300}),
        # It is never raised.
        ({"max_tokens": 100}, "", 300, {}),
        ({"max_tokens": 100, "max_completion_tokens": 900}, "", 300,
         {"max_completion_tokens": 300}),
        # A model that thinks refuses the older name.
        ({"max_tokens": 900}, "gpt-5-nano", None,
         {"model": "gpt-5-nano", "max_tokens": None, "max_completion_tokens": 900}),
        ({"max_tokens": 900}, "gpt-5-nano", 300,
         {"model": "gpt-5-nano", "max_tokens": None, "max_completion_tokens": 300}),
        ({"max_tokens": 900}, "", None, {}),
        ({}, "gpt-5-nano", None, {"model": "gpt-5-nano"}),
    ],
)  # fmt: skip
def test_chat_completions(given, model, most, changed):
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}], **given}
    assert rewritten(CHAT, body, model, most) == changed
    asked = adapter(CHAT).request(adapter(CHAT).rewrite(body, model, most))
    assert asked.model == (model or "gpt-4o")


@pytest.mark.parametrize(
    ("given", "changed"),
    [({"max_output_tokens": 900}, 300), ({}, 300), ({"max_output_tokens": 20}, None)],
)
def test_responses(given, changed):
    body = {"model": "gpt-5", "input": "hi", "previous_response_id": "resp_1", **given}
    expected = {"model": "gpt-5-nano"} | ({"max_output_tokens": changed} if changed else {})
    assert rewritten(RESPONSES, body, "gpt-5-nano", 300) == expected


@pytest.mark.parametrize(
    ("thinking", "most", "changed"),
    [
        (None, 300, {"max_tokens": 300}),
        (None, None, {}),
        (None, 20_000, {}),
        ({"type": "adaptive"}, 300, {"max_tokens": 300}),
        # A budget for thinking shrinks in proportion, and below what Anthropic takes it ends.
        ({"type": "enabled", "budget_tokens": 8_000}, 5_000,
         {"max_tokens": 5_000, "thinking": {"type": "enabled", "budget_tokens": 4_000}}),
        ({"type": "enabled", "budget_tokens": 8_000}, 1_280,
         {"max_tokens": 1_280, "thinking": {"type": "enabled", "budget_tokens": 1_024}}),
        ({"type": "enabled", "budget_tokens": 8_000}, 1_279,
         {"max_tokens": 1_279, "thinking": {"type": "disabled"}}),
        ({"type": "enabled", "budget_tokens": 8_000}, 20_000, {}),
    ],
)  # fmt: skip
def test_messages(thinking, most, changed):
    body = {"model": "claude-opus-5", "max_tokens": 10_000, "messages": []}
    body |= {"thinking": thinking} if thinking else {}
    assert rewritten(MESSAGES, body, "claude-haiku-5", most) == {
        "model": "claude-haiku-5",
        **changed,
    }


@pytest.mark.parametrize(
    ("given", "most", "changed"),
    [
        ({}, None, {}),
        ({}, 300, {"generationConfig": {"maxOutputTokens": 300}}),
        ({"generationConfig": {"maxOutputTokens": 900, "topK": 3}}, 300,
         {"generationConfig": {"maxOutputTokens": 300, "topK": 3}}),
        ({"generation_config": {"max_output_tokens": 900}}, 300,
         {"generation_config": {"max_output_tokens": 300}}),
        ({"generationConfig": {"maxOutputTokens": 90}}, 300, {}),
    ],
)  # fmt: skip
def test_generate_content(given, most, changed):
    body = {"contents": [], **given}
    assert rewritten(GEMINI, body, "gemini-lite", most) == changed


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (GEMINI, "/v1beta/models/gemini-lite:generateContent"),
        ("/v1beta/models/gemini-x:streamGenerateContent",
         "/v1beta/models/gemini-lite:streamGenerateContent"),
        ("/v1/projects/p/locations/eu/publishers/google/models/gemini-x:generateContent",
         "/v1/projects/p/locations/eu/publishers/google/models/gemini-lite:generateContent"),
    ],
)  # fmt: skip
def test_generate_content_has_its_model_in_the_address(path, expected):
    assert adapter(path).address(path, "gemini-lite") == expected
    assert adapter(path).address(path, "") == path
    assert adapter(path).changeable({}, path) is Change.ALL
    assert adapter(path).address(path, "../evil:x").count("/") == path.count("/")


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({}, {"options": {"num_predict": 300}}),
        ({"options": {"num_predict": 900, "seed": 1}},
         {"options": {"num_predict": 300, "seed": 1}}),
        ({"options": {"num_predict": -1}}, {"options": {"num_predict": 300}}),
        ({"options": {"num_predict": 90}}, {}),
    ],
)  # fmt: skip
def test_ollama(given, changed):
    body = {"model": "llama3.2:70b", "messages": [], **given}
    assert rewritten(OLLAMA, body, "llama3.2", 300) == {"model": "llama3.2", **changed}


def test_older_completions_keep_their_model():
    body = {"model": "gpt-3.5-turbo-instruct", "prompt": "hi", "max_tokens": 900}
    assert adapter("/v1/completions").changeable(body, "/v1/completions") is Change.LENGTH
    assert rewritten("/v1/completions", body, "", 300) == {"max_tokens": 300}


@pytest.mark.parametrize(
    ("path", "body", "allowed"),
    [
        (CHAT, {}, Change.ALL),
        (RESPONSES, {"background": True}, Change.ALL),
        (MESSAGES, {}, Change.ALL),
        (OLLAMA, {}, Change.ALL),
        # Where the path says which model answers, a word in the body changes nothing.
        (DEPLOYMENT, {}, Change.LENGTH),
        # What only the named model can take.
        (CHAT, {"modalities": ["text", "audio"]}, Change.LENGTH),
        (CHAT, {"models": ["a", "b"]}, Change.LENGTH),
        (MESSAGES, {"speed": "fast"}, Change.LENGTH),
        (GEMINI, {"cachedContent": "cachedContents/1"}, Change.LENGTH),
        (GEMINI, {"generationConfig": {"responseModalities": ["IMAGE"]}}, Change.LENGTH),
        ("/api/generate", {"context": [1, 2]}, Change.LENGTH),
        ("/api/generate", {"raw": True}, Change.LENGTH),
        # Vectors, pictures and sounds of another model are no cheaper answer to the same question.
        ("/v1/embeddings", {}, Change.NOTHING),
        ("/api/embed", {}, Change.NOTHING),
        ("/v1/images/generations", {}, Change.NOTHING),
        ("/v1/audio/speech", {}, Change.NOTHING),
        ("/v1/audio/transcriptions", {}, Change.NOTHING),
    ],
)
def test_what_may_be_changed(path, body, allowed):
    found = adapter(path)
    assert found.changeable(body, path) is allowed
    if allowed is Change.NOTHING:
        assert (found.rewrite(body, "other", 1), found.address(path, "other")) == (body, path)


@pytest.mark.parametrize(
    ("headers", "query", "signed"),
    [
        ({"authorization": "Bearer sk-1"}, "", False),
        ({"x-api-key": "k", "content-type": "application/json"}, "alt=sse", False),
        ({"Authorization": "AWS4-HMAC-SHA256 Credential=a"}, "", True),
        ({"authorization": "AWS4-ECDSA-P256-SHA256 Credential=a"}, "", True),
        ({"authorization": 'Signature keyId="a"'}, "", True),
        ({"Signature-Input": "sig1=()"}, "", True),
        ({"content-digest": "sha-256=:x:"}, "", True),
        ({}, "X-Amz-Signature=abc", True),
    ],
)
def test_what_is_signed(headers, query, signed):
    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert is_signed(sent, query) is signed
