"""The same things said to each SDK in its own words. The SDK is imported when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

ASK = [{"role": "user", "content": "please say something about the weather in Lisbon"}]
MAX_TOKENS = 100
KEY = "a key that is never stored"


class Dialect:
    """How one SDK makes a client, asks, and gives its answer as text."""

    provider = ""
    model = ""
    retries = True
    reply: Mapping[str, Any] = MappingProxyType({})  # how this provider answers unlike OpenAI

    def client(self, url: str, meter: Callable[..., Any], asynchronous: bool) -> Any:
        raise NotImplementedError

    def plain(self, client: Any) -> str:
        raise NotImplementedError

    def stream(self, client: Any) -> str:
        raise NotImplementedError

    async def aplain(self, client: Any) -> str:
        raise NotImplementedError

    async def astream(self, client: Any) -> str:
        raise NotImplementedError

    async def aclose(self, client: Any) -> None:
        await client.close()


class OpenAI(Dialect):
    provider, model = "openai", "gpt-5-mini"
    names = ("OpenAI", "AsyncOpenAI")
    path = "/v1"

    def client(self, url: str, meter: Callable[..., Any], asynchronous: bool) -> Any:
        kind = getattr(import_module(self.names[0].lower()), self.names[asynchronous])
        return meter(kind(api_key=KEY, base_url=url + self.path, max_retries=2, timeout=5.0))

    def ask(self, client: Any, **options: Any) -> Any:
        return client.chat.completions.create(
            model=self.model, messages=ASK, max_tokens=MAX_TOKENS, **options
        )

    def plain(self, client: Any) -> str:
        return self.ask(client).choices[0].message.content  # type: ignore[no-any-return]

    def stream(self, client: Any) -> str:
        chunks = self.ask(client, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    async def aplain(self, client: Any) -> str:
        answer = await self.ask(client)
        return answer.choices[0].message.content  # type: ignore[no-any-return]

    async def astream(self, client: Any) -> str:
        chunks = await self.ask(client, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])


class Groq(OpenAI):
    provider, model = "groq", "llama-3.3-70b-versatile"
    names = ("Groq", "AsyncGroq")
    path = ""


class Anthropic(OpenAI):
    provider, model = "anthropic", "claude-sonnet-5"
    names = ("Anthropic", "AsyncAnthropic")
    path = ""

    def ask(self, client: Any, **options: Any) -> Any:
        return client.messages.create(
            model=self.model, messages=ASK, max_tokens=MAX_TOKENS, **options
        )

    def plain(self, client: Any) -> str:
        return self.ask(client).content[0].text  # type: ignore[no-any-return]

    def stream(self, client: Any) -> str:
        return "".join(text_of(event) for event in self.ask(client, stream=True))

    async def aplain(self, client: Any) -> str:
        return (await self.ask(client)).content[0].text  # type: ignore[no-any-return]

    async def astream(self, client: Any) -> str:
        return "".join([text_of(event) async for event in await self.ask(client, stream=True)])


def text_of(event: Any) -> str:
    return event.delta.text if event.type == "content_block_delta" else ""


class Mistral(Dialect):
    provider, model = "mistral", "mistral-small-latest"
    reply = MappingProxyType({"usage_in_choice_chunk": True})  # unasked, with the last choice

    def client(self, url: str, meter: Callable[..., Any], asynchronous: bool) -> Any:
        sdk = import_module("mistralai.client")
        retry = import_module("mistralai.client.utils")
        backoff = retry.BackoffStrategy(1, 10, 1.0, 2000)
        retries = retry.RetryConfig("backoff", backoff, True)
        return meter(sdk.Mistral(api_key=KEY, server_url=url, retry_config=retries))

    @property
    def asked(self) -> dict[str, Any]:
        return {"model": self.model, "messages": ASK, "max_tokens": MAX_TOKENS}

    def plain(self, client: Any) -> str:
        return client.chat.complete(**self.asked).choices[0].message.content  # type: ignore[no-any-return]

    def stream(self, client: Any) -> str:
        with client.chat.stream(**self.asked) as events:
            return "".join(event.data.choices[0].delta.content or "" for event in events)

    async def aplain(self, client: Any) -> str:
        answer = await client.chat.complete_async(**self.asked)
        return answer.choices[0].message.content  # type: ignore[no-any-return]

    async def astream(self, client: Any) -> str:
        async with await client.chat.stream_async(**self.asked) as events:
            parts = [event.data.choices[0].delta.content or "" async for event in events]
        return "".join(parts)

    async def aclose(self, client: Any) -> None:
        await client.__aexit__(None, None, None)


class Ollama(Dialect):
    provider, model = "ollama", "llama3.2"
    retries = False

    def client(self, url: str, meter: Callable[..., Any], asynchronous: bool) -> Any:
        sdk = import_module("ollama")
        return meter((sdk.AsyncClient if asynchronous else sdk.Client)(host=url))

    def ask(self, client: Any, **options: Any) -> Any:
        limits = {"num_predict": MAX_TOKENS}
        return client.chat(model=self.model, messages=ASK, options=limits, **options)

    def plain(self, client: Any) -> str:
        return self.ask(client).message.content  # type: ignore[no-any-return]

    def stream(self, client: Any) -> str:
        return "".join(part.message.content for part in self.ask(client, stream=True))

    async def aplain(self, client: Any) -> str:
        return (await self.ask(client)).message.content  # type: ignore[no-any-return]

    async def astream(self, client: Any) -> str:
        return "".join([part.message.content async for part in await self.ask(client, stream=True)])


class LangChain(Dialect):
    """It takes HTTP clients of ours: those are metered."""

    provider, model = "openai", "gpt-5-mini"

    def client(self, url: str, meter: Callable[..., Any], asynchronous: bool) -> Any:
        http = import_module("httpx2")
        return import_module("langchain_openai").ChatOpenAI(
            model=self.model,
            api_key=KEY,
            base_url=f"{url}/v1",
            max_tokens=MAX_TOKENS,
            max_retries=2,
            http_client=meter(http.Client(), provider=self.provider),
            http_async_client=meter(http.AsyncClient(), provider=self.provider),
        )

    def plain(self, client: Any) -> str:
        return client.invoke(ASK).content  # type: ignore[no-any-return]

    def stream(self, client: Any) -> str:
        return "".join(chunk.content for chunk in client.stream(ASK))

    async def aplain(self, client: Any) -> str:
        return (await client.ainvoke(ASK)).content  # type: ignore[no-any-return]

    async def astream(self, client: Any) -> str:
        return "".join([chunk.content async for chunk in client.astream(ASK)])

    async def aclose(self, client: Any) -> None:
        await client.http_async_client.aclose()


class Google(Dialect):
    """It takes HTTP clients of ours, and would use aiohttp without the asynchronous one."""

    provider, model = "google", "gemini-2.5-flash"

    def client(self, url: str, meter: Callable[..., Any], asynchronous: bool) -> Any:
        http = import_module("httpx2")
        options = {
            "base_url": url,
            "httpx_client": meter(http.Client(), provider=self.provider),
            "httpx_async_client": meter(http.AsyncClient(), provider=self.provider),
            "retry_options": {"attempts": 2, "initial_delay": 0.01, "max_delay": 0.01},
        }
        return import_module("google.genai").Client(api_key=KEY, http_options=options)

    @property
    def asked(self) -> dict[str, Any]:
        config = {"max_output_tokens": MAX_TOKENS}
        return {"model": self.model, "contents": ASK[0]["content"], "config": config}

    def plain(self, client: Any) -> str:
        return client.models.generate_content(**self.asked).text  # type: ignore[no-any-return]

    def stream(self, client: Any) -> str:
        chunks = client.models.generate_content_stream(**self.asked)
        return "".join(chunk.text or "" for chunk in chunks)

    async def aplain(self, client: Any) -> str:
        answer = await client.aio.models.generate_content(**self.asked)
        return answer.text  # type: ignore[no-any-return]

    async def astream(self, client: Any) -> str:
        chunks = await client.aio.models.generate_content_stream(**self.asked)
        return "".join([chunk.text or "" async for chunk in chunks])

    async def aclose(self, client: Any) -> None:
        await client.aio.aclose()


SDKS: Final[Mapping[str, Dialect]] = MappingProxyType(
    {
        "anthropic": Anthropic(),
        "google-genai": Google(),
        "groq": Groq(),
        "langchain-openai": LangChain(),
        "mistralai": Mistral(),
        "ollama": Ollama(),
        "openai": OpenAI(),
    }
)
