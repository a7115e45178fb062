"""A model request as the provider received it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

Api = Literal["openai", "anthropic", "ollama", "responses", "embeddings", "gemini"]
GEMINI = re.compile(r"/models/(?P<model>[^/:]+):(?P<kind>generate|streamGenerate)Content\Z")


class BadRequest(Exception):
    """The provider would answer 400; the message says why and quotes no prompt text."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The parts of a request that decide the answer. `body` holds prompt text: never log it."""

    api: Api
    path: str
    model: str
    stream: bool
    include_usage: bool
    max_output_tokens: int | None
    choices: int
    tools: tuple[str, ...]
    bytes_in: int
    body: dict[str, Any] = field(repr=False)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.body["messages"]  # type: ignore[no-any-return]


def api_of(path: str) -> Api | None:
    """The API that a POST to this path speaks, or None if it is not a model endpoint."""
    if path.endswith("/chat/completions"):
        return "openai"
    if path.endswith("/v1/messages"):
        return "anthropic"
    if path.endswith("/v1/responses"):
        return "responses"
    if path.endswith("/v1/embeddings"):
        return "embeddings"
    if path.endswith(("/api/chat", "/api/generate")):
        return "ollama"
    if GEMINI.search(path):
        return "gemini"
    return None


def parse(api: Api, path: str, raw: bytes) -> ModelRequest:
    """Raises BadRequest for what the real provider would refuse as malformed."""
    try:
        body = json.loads(raw)
    except ValueError:
        raise BadRequest("the body is not valid JSON") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be an object")
    if path.endswith("/api/generate"):
        body = {**body, "messages": [{"role": "user", "content": body.get("prompt", "")}]}
    if api in ("responses", "embeddings"):
        body = {**body, "messages": _messages(body.get("input"), each=api == "embeddings")}
    if api == "gemini":
        body = _gemini(path, body)
    model, messages = body.get("model"), body.get("messages")
    if not isinstance(model, str) or not model:
        raise BadRequest("model: field required")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: at least one message is required")
    if not all(isinstance(message, dict) for message in messages):
        raise BadRequest("messages: each message must be an object")
    options = body.get("stream_options")
    return ModelRequest(
        api=api,
        path=path,
        model=model,
        stream=body.get("stream", api == "ollama") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        max_output_tokens=_max_output_tokens(api, body),
        choices=_positive(body, "n") or 1,
        tools=_tools(api, body),
        bytes_in=len(raw),
        body=body,
    )


def _gemini(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Google's words in those of the others; the address says which model, and if it streams."""
    found = GEMINI.search(path)
    assert found is not None
    config = body.get("generationConfig")
    maximum = config.get("maxOutputTokens") if isinstance(config, dict) else None
    return {
        **body,
        "model": found["model"],
        "messages": body.get("contents"),
        "stream": found["kind"] == "streamGenerate",
        "max_tokens": maximum,
    }


def _messages(given: Any, *, each: bool) -> list[dict[str, Any]]:
    """The input as messages: one, unless it is a list of them or each of its items is one."""
    if isinstance(given, str):
        given = [given]
    items = given if isinstance(given, list) else []
    if not each and all(isinstance(item, dict) for item in items):
        return items
    if items and all(isinstance(item, int) for item in items):
        items = [items]
    return [{"role": "user", "content": item} for item in items]


def _max_output_tokens(api: Api, body: dict[str, Any]) -> int | None:
    if api == "anthropic":
        maximum = _positive(body, "max_tokens")
        if maximum is None:
            raise BadRequest("max_tokens: field required")
        return maximum
    if api == "ollama":
        options = body.get("options")
        number = options.get("num_predict") if isinstance(options, dict) else None
        return number if isinstance(number, int) and number > 0 else None
    names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
    given = [_positive(body, name) for name in names]
    return min((value for value in given if value is not None), default=None)


def _positive(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadRequest(f"{name}: must be an integer of at least 1")
    return value


def _tools(api: Api, body: dict[str, Any]) -> tuple[str, ...]:
    choice = body.get("tool_choice")
    if choice == "none" or (isinstance(choice, dict) and choice.get("type") == "none"):
        return ()
    names: list[str] = []
    for tool in body.get("tools") or ():
        named = tool if api in ("anthropic", "responses") else tool.get("function")
        if isinstance(named, dict) and isinstance(named.get("name"), str):
            names.append(named["name"])
    return tuple(names)
