"""Which requests of an SDK are model calls, who serves them, and which adapter reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from token_allowance.providers.adapter import Adapter
from token_allowance.providers.anthropic import Messages
from token_allowance.providers.audio import Speech, Transcriptions
from token_allowance.providers.embeddings import Embeddings
from token_allowance.providers.gemini import GenerateContent
from token_allowance.providers.images import Images
from token_allowance.providers.ollama import Ollama
from token_allowance.providers.openai import ChatCompletions, Completions
from token_allowance.providers.responses import Responses

# Providers by host, named as in genai-prices. A key that begins with a dot stands for every host
# under that domain.
KNOWN_HOSTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "aiplatform.googleapis.com": "google",
        "api.anthropic.com": "anthropic",
        "api.arcee.ai": "arcee",
        "api.avian.io": "avian",
        "api.cerebras.ai": "cerebras",
        "api.cohere.ai": "cohere",
        "api.cohere.com": "cohere",
        "api.deepseek.com": "deepseek",
        "api.fireworks.ai": "fireworks",
        "api.githubcopilot.com": "github-copilot",
        "api.groq.com": "groq",
        "api.minimax.io": "minimax",
        "api.minimaxi.com": "minimax",
        "api.mistral.ai": "mistral",
        "api.moonshot.ai": "moonshotai",
        "api.moonshot.cn": "moonshotai",
        "api.novita.ai": "novita",
        "api.openai.com": "openai",
        "api.perplexity.ai": "perplexity",
        "api.together.ai": "together",
        "api.together.xyz": "together",
        "api.x.ai": "x-ai",
        "api.z.ai": "zai",
        "generativelanguage.googleapis.com": "google",
        "inference.baseten.co": "baseten",
        "ollama.com": "ollama",
        "open.bigmodel.cn": "zhipuai",
        "openrouter.ai": "openrouter",
        ".aiplatform.googleapis.com": "google",
        ".api.openai.com": "openai",
        ".azure-api.net": "azure",
        ".cognitiveservices.azure.com": "azure",
        ".openai.azure.com": "azure",
        ".openrouter.ai": "openrouter",
        ".services.ai.azure.com": "azure",
        ".x.ai": "x-ai",
    }
)

# Whose tokenizers an answer in OpenAI's shape was counted with. Of the rest nothing is known, and
# an unknown host is taken at its word: it imitates OpenAI.
_FAMILIES: Final = {
    "": "openai",
    "openai": "openai",
    "azure": "openai",
    "anthropic": "anthropic",
    "google": "gemini",
}

_CHAT: Final = {name: ChatCompletions(name) for name in ("openai", "anthropic", "gemini")}
_OTHER_CHAT: Final = ChatCompletions("default")
_MISTRAL_CHAT: Final = ChatCompletions("default", tells_usage_unasked=True)
_MESSAGES: Final = Messages()
_RESPONSES: Final = Responses()
_GENERATE: Final = GenerateContent()
_STREAM_GENERATE: Final = GenerateContent(streams=True)

_OLLAMA: Final = Ollama()
_OLLAMA_EMBED: Final = Ollama(embeds=True)

# By the end of the path, for every provider in OpenAI's shape.
_BY_PATH: Final[Mapping[str, Callable[[str], Adapter]]] = MappingProxyType(
    {
        "/completions": Completions,
        "/responses": Responses,
        "/embeddings": Embeddings,
        "/images/generations": Images,
        "/images/edits": Images,
        "/images/variations": Images,
        "/audio/transcriptions": Transcriptions,
        "/audio/translations": Transcriptions,
        "/audio/speech": Speech,
    }
)

# POSTs that run no model. Whole segments at the end of the path; a star is any one segment.
_FREE_PATHS: Final = (
    "chat/completions/chatcmpl*",  # the metadata of a stored completion
    "containers/*/files",
    "conversations",
    "conversations/*",
    "conversations/*/items",
    "files",
    "messages/count_tokens",
    "models",
    "moderations",
    "responses/input_tokens",
    "threads/*/messages",
    "uploads",
    "uploads/*/complete",
    "uploads/*/parts",
    "vector_stores",
    "vector_stores/*",
    "vector_stores/*/file_batches",
    "vector_stores/*/files",
    "vector_stores/*/files/*",
    "vector_stores/*/search",
    "*/cancel",
)
_FREE: Final = re.compile(
    "/(?:" + "|".join(re.escape(path).replace(r"\*", "[^/]*") for path in _FREE_PATHS) + r")\Z"
)
_MODEL_CALL_AT_MISTRAL: Final = re.compile(r"/(?:conversations|moderations)(?:/|\Z)")
_MODEL_IN_PATH: Final = re.compile(r"/models/[^/:]+:(generateContent|streamGenerateContent)\Z")
_REGION: Final = re.compile(r"\A[a-z0-9-]+-(?=aiplatform\.googleapis\.com\Z)")
_RETRIEVAL: Final = re.compile(r"/responses/(?P<id>[^/]{1,200})(?P<cancel>/cancel)?\Z")
_FREE_AT_OLLAMA: Final = re.compile(r"/api/(?:show|pull|push|create|copy|blobs/[^/]+)\Z")


class Unmetered(Enum):
    """Why a request has no adapter."""

    FREE = "free"  # no model call
    UNSUPPORTED = "unsupported"  # may cost money, and nothing here can read it (case C74)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model call: who serves it, ``""`` if the host does not tell, and how to read it."""

    adapter: Adapter
    provider: str


def recognise(method: str, host: str, path: str, provider: str = "") -> Endpoint | Unmetered:
    """What a request is, by the end of its path, under any base URL.

    ``provider`` is what the caller declared; it wins over the host. What is not known to be free
    is UNSUPPORTED, so that no new endpoint goes round the meter.
    """
    if method.upper() != "POST":
        return Unmetered.FREE
    path = path.partition("?")[0].rstrip("/")
    provider = provider or host_provider(host)
    if provider == "mistral" and _MODEL_CALL_AT_MISTRAL.search(path):
        return Unmetered.UNSUPPORTED
    if _FREE.search(path):
        return Unmetered.FREE
    if path.endswith("/chat/completions"):
        if provider == "mistral":
            return Endpoint(_MISTRAL_CHAT, provider)
        family = _FAMILIES.get(provider, "default")
        return Endpoint(_CHAT.get(family, _OTHER_CHAT), provider)
    if path.endswith("/messages"):
        return Endpoint(_MESSAGES, provider)
    if path.endswith(("/api/chat", "/api/generate")):
        return Endpoint(_OLLAMA, provider or "ollama")
    if path.endswith(("/api/embed", "/api/embeddings")):
        return Endpoint(_OLLAMA_EMBED, provider or "ollama")
    if provider == "ollama" and _FREE_AT_OLLAMA.search(path):
        return Unmetered.FREE
    if found := _MODEL_IN_PATH.search(path):
        return Endpoint(
            _STREAM_GENERATE if found[1] == "streamGenerateContent" else _GENERATE, provider
        )
    kind = next((kind for end, kind in _BY_PATH.items() if path.endswith(end)), None)
    if kind is not None:
        return Endpoint(_adapter(kind, _FAMILIES.get(provider, "default")), provider)
    return Unmetered.UNSUPPORTED


@lru_cache(maxsize=64)
def _adapter(kind: Callable[[str], Adapter], family: str) -> Adapter:
    return kind(family)


@dataclass(frozen=True, slots=True)
class Retrieval:
    """A look at an answer that is made in the background, or the end of its making."""

    adapter: Adapter
    deferred_id: str


def retrieval(method: str, path: str) -> Retrieval | None:
    """What a free request fetches, if it may be an answer that was deferred."""
    found = _RETRIEVAL.search(path.partition("?")[0].rstrip("/"))
    if found is None or method.upper() != ("POST" if found["cancel"] else "GET"):
        return None
    return Retrieval(_RESPONSES, found["id"])


def host_provider(host: str) -> str:
    """The provider that a host name tells, ``""`` if it is not known. A port is ignored."""
    name = host.lower().partition(":")[0].rstrip(".")
    name = _REGION.sub("", name)
    if name in KNOWN_HOSTS:
        return KNOWN_HOSTS[name]
    while "." in name:
        name = name.partition(".")[2]
        if known := KNOWN_HOSTS.get(f".{name}"):
            return known
    return ""
