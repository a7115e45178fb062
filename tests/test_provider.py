"""The simulated provider, seen through the official SDKs and through raw HTTP."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import anthropic
import httpx
import openai
import pytest

from project.provider import FIXED_COST, Provider, ProviderProcess, RemoteProvider, Reply

ASK = [{"role": "user", "content": "please say something about the weather in Lisbon"}]
SECRET = "sk-never-logged"


@pytest.fixture
def provider():
    with Provider() as started:
        yield started


@pytest.fixture
def gpt(provider):
    with openai.OpenAI(base_url=provider.openai_url, api_key=SECRET, max_retries=0) as client:
        yield client


@pytest.fixture
def claude(provider):
    url = provider.anthropic_url
    with anthropic.Anthropic(base_url=url, api_key=SECRET, max_retries=0) as client:
        yield client


def chat(client, **options):
    return client.chat.completions.create(**{"model": "gpt-5-mini", "messages": ASK, **options})


def message(client, **options):
    defaults = {"model": "claude-haiku-4-5", "messages": ASK, "max_tokens": 500}
    return client.messages.create(**{**defaults, **options})


def test_openai_plain_answer_counts_tokens_and_echoes_no_prompt(provider, gpt):
    answer = chat(gpt)
    assert answer.choices[0].finish_reason == "stop"
    assert "Lisbon" not in answer.choices[0].message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage == chat(gpt).usage
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_openai_maximum_and_choices_bound_the_output(gpt):
    answer = chat(gpt, max_completion_tokens=7, n=3)
    assert [choice.finish_reason for choice in answer.choices] == ["length"] * 3
    assert answer.usage.completion_tokens == 21


def test_openai_stream_tells_usage_only_if_asked(provider, gpt):
    silent = list(chat(gpt, stream=True))
    asked = list(chat(gpt, stream=True, stream_options={"include_usage": True}))
    assert all(chunk.choices and chunk.usage is None for chunk in silent)
    assert [chunk.choices for chunk in asked if chunk.usage] == [[]]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in silent)
    assert text == chat(gpt).choices[0].message.content
    assert asked[-1].usage == chat(gpt).usage
    assert [bool(entry.usage) for entry in provider.log()] == [False, True, True, True]


def test_anthropic_plain_answer_and_maximum(claude):
    answer = message(claude, max_tokens=9)
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 9)
    assert message(claude).stop_reason == "end_turn"


def test_anthropic_stream_is_cumulative(claude):
    with claude.messages.stream(model="claude-haiku-4-5", max_tokens=500, messages=ASK) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    start = next(iter(message(claude, stream=True))).message.usage
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert (start.input_tokens, start.output_tokens) == (final.usage.input_tokens, 1)
    assert final.content[0].text == message(claude).content[0].text
    assert final.usage.output_tokens == message(claude).usage.output_tokens > 1


@pytest.mark.asyncio
async def test_async_clients_plain_and_streamed(provider):
    options = {"api_key": SECRET, "max_retries": 0}
    async with openai.AsyncOpenAI(base_url=provider.openai_url, **options) as gpt:
        answers = await asyncio.gather(*(chat(gpt) for _ in range(20)))
        chunks = [chunk async for chunk in await chat(gpt, stream=True)]
    async with anthropic.AsyncAnthropic(base_url=provider.anthropic_url, **options) as claude:
        answer = await message(claude)
        events = [event.type async for event in await message(claude, stream=True)]
    assert len({answer.id for answer in answers}) == 20
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert answer.usage.output_tokens == answers[0].usage.completion_tokens
    assert events[-1] == "message_stop"


def test_repeated_prefix_is_cached_but_never_the_last_message(gpt, claude):
    longer = [*ASK, {"role": "assistant", "content": "Sunny."}, {"role": "user", "content": "Now?"}]
    first = chat(gpt).usage
    second = chat(gpt, messages=longer).usage
    assert second.prompt_tokens_details.cached_tokens == first.prompt_tokens
    assert chat(gpt, messages=longer, model="gpt-5").usage.prompt_tokens_details.cached_tokens == 0
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    written, read = (message(claude, system=system).usage for _ in range(2))
    assert written.cache_creation_input_tokens == read.cache_read_input_tokens > 0
    assert written.cache_creation.ephemeral_5m_input_tokens == read.cache_read_input_tokens
    assert written.input_tokens == read.input_tokens
    assert read.cache_creation_input_tokens == written.cache_read_input_tokens == 0


def test_scripted_usage_is_exact(provider, gpt, claude):
    verbatim = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
    provider.script([Reply(usage=verbatim), Reply(usage=None)], default=FIXED_COST)
    assert chat(gpt).usage.model_dump(exclude_none=True) == verbatim
    assert chat(gpt).usage is None
    usage = chat(gpt, max_tokens=1).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (100, 100)
    assert message(claude).usage.input_tokens == message(claude).usage.output_tokens == 100


def test_scripted_stream_usage_late_early_and_never(provider, gpt):
    provider.script([Reply(usage_in_choice_chunk=True), Reply(no_usage_even_if_asked=True)])
    early = list(chat(gpt, stream=True))
    never = list(chat(gpt, stream=True, stream_options={"include_usage": True}))
    assert [chunk.choices[0].finish_reason for chunk in early if chunk.usage] == ["stop"]
    assert not any(chunk.usage for chunk in never)


def test_scripted_errors_reach_both_sdks_in_their_own_shape(provider, gpt, claude):
    provider.script([Reply(status=429, headers={"retry-after": "7"}), Reply(status=529)])
    with pytest.raises(openai.RateLimitError) as limited:
        chat(gpt, stream=True)
    with pytest.raises(anthropic.APIStatusError) as overloaded:
        message(claude)
    assert limited.value.code == "rate_limit_exceeded"
    assert limited.value.response.headers["retry-after"] == "7"
    assert overloaded.value.body["error"]["type"] == "overloaded_error"
    assert [(entry.status, entry.outcome) for entry in provider.log()] == [
        (429, "error"),
        (529, "error"),
    ]


def test_each_sdk_retry_is_one_request(provider):
    provider.script([Reply(status=500, headers={"retry-after-ms": "1"})])
    with openai.OpenAI(base_url=provider.openai_url, api_key=SECRET, max_retries=1) as client:
        chat(client)
    retries = [entry.headers["x-stainless-retry-count"] for entry in provider.log()]
    assert retries == ["0", "1"]


def test_error_event_in_a_stream(provider, gpt, claude):
    provider.script([Reply(error_event_after_chunks=2)] * 2)
    with pytest.raises(openai.APIError, match="simulated"):
        list(chat(gpt, stream=True))
    with pytest.raises(anthropic.APIStatusError, match="overloaded"):
        list(message(claude, stream=True))
    assert [(e.outcome, e.chunks_sent) for e in provider.log()] == [("failed", 2)] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_dropped_hung_and_reset_connections(provider, stream):
    body = {"model": "gpt-5", "messages": ASK, "stream": stream}
    provider.script([Reply(drop_after_chunks=1), Reply(reset_connection=True), Reply(hang=True)])
    with httpx.Client(base_url=provider.openai_url, timeout=0.3) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            client.post("/chat/completions", json=body)
        with pytest.raises(httpx.ReadError):
            client.post("/chat/completions", json=body)
        with pytest.raises(httpx.ReadTimeout):
            client.post("/chat/completions", json=body)
    outcomes = [entry.outcome for entry in provider.wait_until_quiet()]
    assert outcomes == ["dropped", "reset", "disconnected"]


def test_client_that_leaves_a_stream_is_noticed(provider, gpt):
    provider.script([Reply(chunks=50, chunk_delay_seconds=0.02)])
    with chat(gpt, stream=True) as stream:
        next(stream)
        next(stream)
    (entry,) = provider.wait_until_quiet()
    assert entry.outcome == "disconnected"
    assert 1 <= entry.chunks_sent < 50
    assert entry.usage is None


@pytest.mark.parametrize("stream", [False, True])
def test_gzip_and_verbatim_bodies(provider, gpt, stream):
    provider.script([Reply(content_encoding="gzip", text="Olá mundo", chunks=4)])
    answer = chat(gpt, stream=stream)
    if stream:
        assert "".join(part.choices[0].delta.content or "" for part in answer) == "Olá mundo"
    else:
        assert answer.choices[0].message.content == "Olá mundo"
    with httpx.Client(base_url=provider.openai_url) as client:
        provider.script([Reply(body="data: é\n\n", chunks=9)])
        body = {"model": "m", "messages": ASK, "stream": stream}
        assert client.post("/chat/completions", json=body).text == "data: é\n\n"


def test_log_tells_sizes_and_outcome_but_no_text_and_no_key(provider, gpt):
    chat(gpt, max_tokens=5, n=2)
    (entry,) = provider.log()
    assert (entry.number, entry.api, entry.model) == (1, "openai", "gpt-5-mini")
    assert (entry.path, entry.messages, entry.choices) == ("/v1/chat/completions", 1, 2)
    assert (entry.max_output_tokens, entry.stream, entry.status) == (5, False, 200)
    assert (entry.outcome, entry.usage["completion_tokens"]) == ("completed", 10)
    assert set(entry.headers) == {"x-stainless-retry-count", "accept-encoding"}
    assert "Lisbon" not in repr(entry)
    assert SECRET not in repr(entry)
    assert entry.bytes_in > len(ASK[0]["content"])


def test_malformed_requests_are_refused_as_by_the_real_ones(provider, gpt):
    with pytest.raises(openai.BadRequestError, match="messages"):
        chat(gpt, messages=[])
    with httpx.Client(base_url=provider.anthropic_url) as client:
        answer = client.post("/v1/messages", json={"model": "m", "messages": ASK})
        assert (answer.status_code, answer.json()["error"]["type"]) == (
            400,
            "invalid_request_error",
        )
        assert client.get("/v1/nothing").status_code == 404
    assert [entry.outcome for entry in provider.log()] == ["error", "error"]


def test_models_and_token_counts_are_no_model_requests(provider, gpt, claude):
    assert "gpt-5-mini" in [model.id for model in gpt.models.list()]
    assert "claude-haiku-4-5" in [model.id for model in claude.models.list()]
    counted = claude.messages.count_tokens(model="claude-haiku-4-5", messages=ASK)
    assert provider.log() == []
    assert counted.input_tokens == message(claude).usage.input_tokens


def test_function_script_may_hold_calls_back(provider, gpt):
    gate = threading.Event()

    def choose(request):
        assert gate.wait(5)
        return Reply(text=request.model)

    provider.script(choose)
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(chat, gpt, model=f"m{number}") for number in range(8)]
        for _ in range(500):
            if provider.totals().open == 8:
                break
            time.sleep(0.01)
        gate.set()
        texts = [call.result().choices[0].message.content for call in calls]
    assert texts == [f"m{number}" for number in range(8)]
    assert provider.totals().open_peak == 8


def test_another_process_is_scripted_and_read_over_http():
    with ProviderProcess() as started:
        provider = RemoteProvider(started.anthropic_url)
        provider.script([Reply(status=500)], default=FIXED_COST)
        body = {"model": "gpt-5", "messages": ASK}
        with httpx.Client(base_url=provider.openai_url) as client:
            answers = [client.post("/chat/completions", json=body) for _ in range(2)]
            forged = client.post(
                f"{provider.anthropic_url}/_control/reset", headers={"origin": "x"}
            )
        assert [answer.status_code for answer in answers] == [500, 200]
        assert answers[1].json()["usage"]["total_tokens"] == 200
        assert forged.status_code == 403
        assert [entry.outcome for entry in provider.wait_until_quiet()] == ["error", "completed"]
        with pytest.raises(ValueError, match="colour"):
            provider._call("POST", "script", {"default": {"colour": "red"}})
        provider.reset()
        assert (provider.log(), provider.totals().received) == ([], 0)
