from __future__ import annotations

import pytest

from token_allowance.providers.endpoints import (
    KNOWN_HOSTS,
    Endpoint,
    Unmetered,
    host_provider,
    recognise,
    retrieval,
)


@pytest.mark.parametrize(
    ("host", "path", "api", "provider", "family"),
    [
        ("api.openai.com", "/v1/chat/completions", "chat_completions", "openai", "openai"),
        ("API.OpenAI.com:443", "/v1/chat/completions", "chat_completions", "openai", "openai"),
        ("eu.api.openai.com", "/v1/chat/completions/", "chat_completions", "openai", "openai"),
        ("api.anthropic.com", "/v1/messages", "messages", "anthropic", "anthropic"),
        ("api.anthropic.com", "/v1/messages?beta=true", "messages", "anthropic", "anthropic"),
        ("api.anthropic.com", "/v1/chat/completions", "chat_completions", "anthropic", "anthropic"),
        ("api.x.ai", "/v1/chat/completions", "chat_completions", "x-ai", "default"),
        ("api.groq.com", "/openai/v1/chat/completions", "chat_completions", "groq", "default"),
        ("api.deepseek.com", "/chat/completions", "chat_completions", "deepseek", "default"),
        ("api.mistral.ai", "/v1/chat/completions", "chat_completions", "mistral", "default"),
        ("openrouter.ai", "/api/v1/chat/completions", "chat_completions", "openrouter", "default"),
        (
            "generativelanguage.googleapis.com",
            "/v1beta/openai/chat/completions",
            "chat_completions",
            "google",
            "gemini",
        ),
        (
            "acme.openai.azure.com",
            "/openai/deployments/prod/chat/completions?api-version=2026-01-01",
            "chat_completions",
            "azure",
            "openai",
        ),
        ("api.openai.com", "/v1/responses", "responses", "openai", "openai"),
        ("api.openai.com", "/v1/completions", "completions", "openai", "openai"),
        ("api.openai.com", "/v1/embeddings", "embeddings", "openai", "openai"),
        ("api.mistral.ai", "/v1/embeddings", "embeddings", "mistral", "default"),
        ("api.openai.com", "/v1/images/generations", "images", "openai", "openai"),
        ("api.openai.com", "/v1/images/edits", "images", "openai", "openai"),
        ("api.openai.com", "/v1/audio/transcriptions", "transcriptions", "openai", "openai"),
        ("api.openai.com", "/v1/audio/translations", "transcriptions", "openai", "openai"),
        ("api.openai.com", "/v1/audio/speech", "speech", "openai", "openai"),
        (
            "generativelanguage.googleapis.com",
            "/v1beta/models/gemini-3-flash:generateContent",
            "generate_content",
            "google",
            "gemini",
        ),
        (
            "europe-west4-aiplatform.googleapis.com",
            "/v1/projects/p/locations/l/publishers/google/models/gemini-3:streamGenerateContent",
            "generate_content",
            "google",
            "gemini",
        ),
        ("127.0.0.1:8000", "//chat/completions", "chat_completions", "", "openai"),
        ("[::1]:8000", "/messages", "messages", "", "anthropic"),
        ("127.0.0.1:11434", "/api/chat", "ollama", "ollama", "default"),
        ("ollama.com", "/api/generate", "ollama", "ollama", "default"),
        ("gpu.test", "/ollama/api/embed", "ollama", "ollama", "default"),
    ],
)
def test_model_calls_are_recognised_under_any_base_url(
    host: str, path: str, api: str, provider: str, family: str
) -> None:
    found = recognise("POST", host, path)
    assert isinstance(found, Endpoint)
    assert (found.adapter.api, found.provider, found.adapter.family) == (api, provider, family)


@pytest.mark.parametrize(("provider", "changes"), [("mistral", False), ("groq", True), ("", True)])
def test_mistral_refuses_to_be_asked_for_usage_and_tells_it_unasked(
    provider: str, changes: bool
) -> None:
    found = recognise("POST", "127.0.0.1", "/v1/chat/completions", provider)
    assert isinstance(found, Endpoint)
    asked = found.adapter.ask_usage({"model": "m", "messages": [], "stream": True})
    assert (asked is not None) is changes


def test_the_declared_provider_wins_over_the_host() -> None:
    found = recognise("POST", "api.openai.com", "/v1/chat/completions", provider="groq")
    assert isinstance(found, Endpoint)
    assert (found.provider, found.adapter.family) == ("groq", "default")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions/chatcmpl-123",
        "/v1/conversations",
        "/v1/conversations/conv_1/items",
        "/v1/files",
        "/v1/messages/batches/msgbatch_1/cancel",
        "/v1/messages/count_tokens?beta=true",
        "/v1/models",
        "/v1/moderations",
        "/v1/responses/input_tokens",
        "/v1/responses/resp_1/cancel",
        "/v1/threads/thread_1/messages",
        "/v1/uploads",
        "/v1/uploads/upload_1/parts",
        "/v1/vector_stores",
        "/v1/vector_stores/vs_1/file_batches",
    ],
)
def test_posts_that_run_no_model_are_free(path: str) -> None:
    assert recognise("POST", "api.openai.com", path) is Unmetered.FREE


@pytest.mark.parametrize("path", ["show", "pull", "push", "create", "copy", "blobs/sha256:29fd"])
def test_moving_models_is_free_at_ollama_only(path: str) -> None:
    assert recognise("POST", "127.0.0.1", f"/api/{path}", "ollama") is Unmetered.FREE
    assert recognise("POST", "127.0.0.1", f"/api/{path}") is Unmetered.UNSUPPORTED


@pytest.mark.parametrize("method", ["GET", "get", "DELETE", "HEAD", "OPTIONS"])
def test_what_is_no_post_is_free(method: str) -> None:
    """Reading a stored answer again is no generation (case C49)."""
    assert recognise(method, "api.openai.com", "/v1/chat/completions/x") is Unmetered.FREE


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/batches",
        "/v1/chat/completions/new-thing",
        "/v1/fine_tuning/jobs",
        "/v1/messages/batches",
        "/v1/something/new",
        "/v1/threads/runs",
        "/v1/threads/thread_1/runs",
        "/v1beta/models/gemini-3:batchGenerateContent",
        "/v1/realtime/sessions",
        "/v1/chat%2Fcompletions",
    ],
)
def test_case_c74_any_other_post_may_cost_money(path: str) -> None:
    assert recognise("POST", "api.openai.com", path) is Unmetered.UNSUPPORTED


@pytest.mark.parametrize("path", ["/v1/conversations", "/v1/conversations/c_1", "/v1/moderations"])
def test_what_is_free_elsewhere_is_a_model_call_at_mistral(path: str) -> None:
    assert recognise("POST", "api.mistral.ai", path) is Unmetered.UNSUPPORTED


@pytest.mark.parametrize(
    "host",
    ["", "example.com", "openai.com.evil.test", "xapi.openai.com.test", "notx.ai", "localhost"],
)
def test_unknown_hosts_tell_no_provider(host: str) -> None:
    assert host_provider(host) == ""


def test_known_hosts_are_lower_case_and_name_a_provider() -> None:
    assert all(host == host.lower() and provider for host, provider in KNOWN_HOSTS.items())


def test_providers_are_named_as_in_the_price_data() -> None:
    data = pytest.importorskip("genai_prices.data", reason="the price data are an extra")
    unpriced = {"ollama"}
    assert set(KNOWN_HOSTS.values()) - unpriced <= {provider.id for provider in data.providers}


@pytest.mark.parametrize(
    ("method", "path", "deferred_id"),
    [
        ("GET", "/v1/responses/resp_1", "resp_1"),
        ("get", "/v1/responses/resp_1?include=x", "resp_1"),
        ("POST", "/v1/responses/resp_1/cancel", "resp_1"),
        ("POST", "/v1/responses/resp_1", None),
        ("GET", "/v1/responses/resp_1/cancel", None),
        ("GET", "/v1/responses/resp_1/input_items", None),
        ("DELETE", "/v1/responses/resp_1", None),
        ("GET", "/v1/models/gpt-5", None),
    ],
)
def test_a_look_at_an_answer_in_the_background_is_recognised(
    method: str, path: str, deferred_id: str | None
) -> None:
    found = retrieval(method, path)
    assert (found.deferred_id if found else None) == deferred_id
