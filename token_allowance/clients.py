"""SDK clients and the HTTP clients inside them: copies that send through other HTTP clients."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any, Final

HTTP_MODULES: Final = ("httpx2", "httpx")

#: Whose prices apply to a client whose base URL does not tell: its package, and the provider.
PROVIDERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "anthropic": "anthropic",
        "groq": "groq",
        "mistralai": "mistral",
        "ollama": "ollama",
        "openai": "openai",
    }
)

Convert = Callable[[Any], Any]


def provider(client: object) -> str:
    """The provider that a client's class stands for, ``""`` if for none."""
    packages = (kind.__module__.partition(".")[0] for kind in type(client).__mro__)
    return next((PROVIDERS[name] for name in packages if name in PROVIDERS), "")


def http_module(client: object) -> ModuleType | None:
    """``httpx`` or ``httpx2`` if the object is a client of one of them."""
    for kind in type(client).__mro__:
        root = kind.__module__.partition(".")[0]
        if root in HTTP_MODULES and kind.__name__ in ("Client", "AsyncClient"):
            return sys.modules[root]
    return None


def converted(client: Any, convert: Convert) -> Any | None:
    """A copy of an SDK's client whose HTTP clients are what ``convert`` makes of them.

    The original stays as it is. None for what is no such client.
    """
    http = getattr(client, "_client", None)
    if http is not None and http_module(http) is not None:
        if hasattr(client, "with_options"):  # OpenAI, Anthropic, Groq
            return client.with_options(http_client=convert(http))
        return _copy(client, vars(client), _client=convert(http))  # Ollama
    configuration = getattr(client, "sdk_configuration", None)
    return None if configuration is None else _configured(client, configuration, convert)


def _configured(client: Any, configuration: Any, convert: Convert) -> Any | None:
    """Mistral: one object for both kinds of calls, whose parts are made when first used."""
    both = [getattr(configuration, name, None) for name in ("client", "async_client")]
    if not all(map(http_module, both)):
        return None
    own = copy.copy(configuration)
    own.client, own.async_client = map(convert, both)
    fields = {  # without the parts already made, which send through the original
        name: value
        for name, value in vars(client).items()
        if getattr(value, "sdk_configuration", None) is not configuration
    }
    return _copy(client, fields, sdk_configuration=own)


def _copy(client: Any, fields: Mapping[str, Any], **changed: Any) -> Any:
    """It keeps the original alive, whose own clean-up would close what they share."""
    made = object.__new__(type(client))
    made.__dict__.update(fields, **changed, _token_allowance_original=client)
    return made
