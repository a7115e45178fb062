"""The client that a probe calls with: an SDK as its users have it, or what is installed instead."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from token_allowance import allowance
from token_allowance.drills.plan import NAME

MESSAGES = [{"role": "user", "content": "drill"}]
MAX_TOKENS = 1
SECONDS = 20.0
Ask = Callable[[], object]


@contextmanager
def client(url: str) -> Iterator[tuple[str, Ask]]:
    """Its name, and a function that makes one metered call of the model at ``url``.

    OpenAI's with the retries it has by default; loopback is never asked through a proxy.
    """
    if find_spec("openai"):
        with _openai() as http:
            yield "openai", _sdk(http, url)
        return
    for name in ("httpx2", "httpx"):
        if find_spec(name):
            with importlib.import_module(name).Client(trust_env=False, timeout=SECONDS) as http:
                yield name, _http(http, url)
            return
    yield "allowance.call", _by_hand


def _openai() -> Any:
    import openai

    return openai.DefaultHttpxClient(trust_env=False)


def _sdk(http: Any, url: str) -> Ask:
    import openai

    made = openai.OpenAI(api_key=NAME, base_url=f"{url}/v1", http_client=http, timeout=SECONDS)
    completions: Any = allowance.meter(made, provider=NAME).chat.completions
    return lambda: completions.create(model=NAME, messages=MESSAGES, max_tokens=MAX_TOKENS)


def _http(http: Any, url: str) -> Ask:
    made = allowance.meter(http, provider=NAME)
    body = {"model": NAME, "messages": MESSAGES, "max_tokens": MAX_TOKENS}

    def ask() -> object:
        return made.post(f"{url}/v1/chat/completions", json=body).raise_for_status()

    return ask


def _by_hand() -> None:
    with allowance.call(
        provider=NAME, model=NAME, input_tokens=1, max_output_tokens=MAX_TOKENS
    ) as call:
        call.record(allowance.Usage(input_tokens=1, output_tokens=1))
