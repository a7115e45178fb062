"""SDK clients as metering sees them: whose they are, and copies that send through other clients."""

from __future__ import annotations

import copy
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from tests.metering import CERTIFICATES, KEY
from token_allowance import clients


class OwnClient(openai.OpenAI):
    """A host's own subclass."""


class Configuration:
    def __init__(self, client: Any, async_client: Any) -> None:
        self.client = client
        self.async_client = async_client
        self.server_url = "https://models.example"


class Part:
    def __init__(self, configuration: Configuration) -> None:
        self.sdk_configuration = configuration


class Both(Part):
    """Like Mistral's client: synchronous and asynchronous, with parts made when first used."""

    def __getattr__(self, name: str) -> Part:
        if name != "chat":
            raise AttributeError(name)
        self.chat = Part(self.sdk_configuration)
        return self.chat


class Thin:
    """Like Ollama's client."""

    def __init__(self, http: Any) -> None:
        self._client = http
        self.host = "here"


@pytest.fixture
def http():
    with httpx2.Client(verify=CERTIFICATES) as client:
        yield client


def test_a_subclass_stands_for_the_same_provider(http):
    assert clients.provider(OwnClient(api_key=KEY, http_client=http)) == "openai"
    assert clients.provider(anthropic.Anthropic(api_key=KEY, http_client=http)) == "anthropic"
    assert clients.provider(http) == ""
    assert clients.provider(object()) == ""


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_clients_of_both_http_modules_are_known(module):
    for kind in (module.Client, module.AsyncClient):
        made = object.__new__(type("Own", (kind,), {"__del__": lambda self: None}))
        assert clients.http_module(made) is module
    assert clients.http_module(module.Request("GET", "https://models.example")) is None


def test_a_copy_of_both_kinds_at_once_makes_its_parts_anew(http):
    original = Both(Configuration(http, copy.copy(http)))
    before = original.chat
    made = clients.converted(original, lambda inner: ("metered", inner))
    assert type(made) is Both
    assert made.sdk_configuration.client == ("metered", original.sdk_configuration.client)
    assert made.chat.sdk_configuration.async_client[0] == "metered"
    assert made.sdk_configuration.server_url == "https://models.example"
    assert original.chat is before
    assert original.sdk_configuration.client is http


def test_a_copy_of_a_thin_client_keeps_the_original_alive(http):
    original = Thin(http)
    made = clients.converted(original, lambda inner: ("metered", inner))
    assert (type(made), made._client, made.host) == (Thin, ("metered", http), "here")
    assert original._client is http
    assert original in vars(made).values()


@pytest.mark.parametrize(
    "other", [object(), Thin("no http client"), Both(Configuration(None, None))]
)
def test_what_holds_no_http_client_is_no_such_client(other):
    assert clients.converted(other, lambda inner: inner) is None
