"""What meter() returns: the same client, metered; what it wraps, and what it refuses to pass."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import warnings

import anthropic
import httpx
import httpx2
import openai
import pytest

from project.provider import Reply
from tests.metering import (
    ASK,
    CERTIFICATES,
    GPT,
    KEY,
    KINDS,
    RESERVED,
    SDKS,
    Lab,
    create,
)
from token_allowance import allowance
from token_allowance.exceptions import AllowanceExceeded, CapExceeded, UnmeteredEndpoint

pytestmark = pytest.mark.django_db(transaction=True)

sdks = pytest.mark.parametrize("sdk", SDKS)
FIXED = Reply(input_tokens=40, output_tokens=9)
BODY = {"model": GPT, "messages": ASK, "max_tokens": 100}


@pytest.fixture
def lab():
    with Lab() as lab:
        lab.provider.script(default=FIXED)
        yield lab


@pytest.mark.parametrize(("sdk", "asynchronous"), list(KINDS))
def test_a_metered_client_is_of_the_same_type_and_keeps_its_settings(lab, sdk, asynchronous):
    async def look() -> None:
        original = lab.sdk(sdk, asynchronous, timeout=7.0, default_headers={"x-own": "1"})
        metered = allowance.meter(original)
        assert type(metered) is type(original)
        assert isinstance(metered, KINDS[sdk, asynchronous][0])
        assert isinstance(metered._client, type(original._client))
        assert (metered.api_key, metered.base_url) == (original.api_key, original.base_url)
        assert (metered.timeout, metered.max_retries) == (7.0, 0)
        assert metered.default_headers["x-own"] == "1"
        assert original._client._transport is not metered._client._transport
        closed = original.close()
        if asynchronous:
            await closed

    asyncio.run(look())


def test_the_default_client_of_an_sdk_is_metered_too(lab):
    with (
        openai.OpenAI(api_key=KEY, base_url=lab.provider.openai_url) as gpt,
        anthropic.Anthropic(api_key=KEY, base_url=lab.provider.anthropic_url) as claude,
    ):
        create(allowance.meter(gpt))
        create(allowance.meter(claude))
    assert [row.cost_micros for row in lab.rows(2)] == [58, 255]


@sdks
def test_the_original_is_not_metered_and_outlives_the_copy(lab, sdk):
    with lab.sdk(sdk) as original:
        metered = allowance.meter(original)
        create(metered)
        create(original)
        del metered
        gc.collect()
        create(original)
    assert (lab.requests(), len(lab.rows(1))) == (3, 1)


@sdks
def test_the_copy_outlives_the_original(lab, sdk):
    original = lab.sdk(sdk)
    metered = allowance.meter(original)
    create(metered)
    del original
    gc.collect()
    create(metered)
    metered.close()
    assert (lab.requests(), len(lab.rows(2))) == (2, 2)


def test_dropping_metered_copies_warns_of_nothing(lab):
    async def use() -> None:
        async with lab.sdk("openai", True) as original:
            await create(allowance.meter(original))
            gc.collect()
            await create(original)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(use())
        gc.collect()
    assert (lab.requests(), len(lab.rows(1))) == (2, 1)


@sdks
def test_a_copy_of_a_metered_client_stays_metered_case_c74(lab, sdk):
    with lab.client(sdk, feature="chat") as client:
        create(client.with_options(timeout=3.0))
        create(client.copy(max_retries=1))
    assert [row.feature for row in lab.rows(2)] == ["chat", "chat"]


@sdks
def test_metering_twice_counts_once_and_the_outer_word_wins(lab, sdk):
    with lab.sdk(sdk) as original:
        inner = allowance.meter(original, feature="inner", tenant="acme")
        outer = allowance.meter(inner, feature="outer")
        create(outer)
        create(inner)
    rows = [(row.tenant, row.feature) for row in lab.rows(2)]
    assert rows == [("acme", "outer"), ("acme", "inner")]


def test_a_client_around_a_metered_http_client_counts_once(lab):
    with httpx2.Client() as http:
        metered = allowance.meter(http, feature="http", provider="openai")
        client = lab.sdk("openai").with_options(http_client=metered)
        create(client)
        create(allowance.meter(client, feature="sdk"))
    assert [row.feature for row in lab.rows(2)] == ["http", "sdk"]


@pytest.mark.parametrize("module", [httpx, httpx2])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_plain_http_client(lab, module, asynchronous):
    url = f"{lab.provider.openai_url}/chat/completions"

    async def ask() -> None:
        async with module.AsyncClient() as http:
            client = allowance.meter(http, provider="openai", feature="raw")
            assert (await client.post(url, json=BODY)).json()["usage"]["completion_tokens"] == 9
            assert (await http.post(url, json=BODY)).status_code == 200
            await lab.ashrink("calls", 1)
            with pytest.raises(AllowanceExceeded):
                await client.post(url, json=BODY)

    def ask_sync() -> None:
        with module.Client() as http:
            client = allowance.meter(http, provider="openai", feature="raw")
            assert isinstance(client, module.Client)
            assert client.post(url, json=BODY).json()["usage"]["completion_tokens"] == 9
            assert http.post(url, json=BODY).status_code == 200
            lab.shrink("calls", 1)
            with pytest.raises(AllowanceExceeded):
                client.post(url, json=BODY)

    asyncio.run(ask()) if asynchronous else ask_sync()
    assert (lab.row().cost_micros, lab.row().feature) == (58, "raw")
    assert lab.requests() == 2


@pytest.mark.parametrize("module", [httpx, httpx2])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_sdks_that_retry_what_a_transport_raises_get_a_response_that_raises(
    lab, module, asynchronous
):
    """As the SDKs before httpx2 did: they wrap an exception, but not that of raise_for_status."""
    url = f"{lab.provider.openai_url}/chat/completions"
    lab.shrink("calls", 0)

    async def send(headers):
        if not asynchronous:
            with module.Client() as http:
                return allowance.meter(http, provider="openai").post(
                    url, json=BODY, headers=headers
                )
        async with module.AsyncClient() as http:
            client = allowance.meter(http, provider="openai")
            return await client.post(url, json=BODY, headers=headers)

    response = asyncio.run(send({"x-stainless-lang": "python"}))
    assert (response.status_code, response.headers["x-should-retry"]) == (429, "false")
    with pytest.raises(AllowanceExceeded) as caught:
        response.raise_for_status()
    assert type(caught.value) is AllowanceExceeded
    with pytest.raises(AllowanceExceeded):
        _ = response.is_success
    assert response.json()["error"]["type"] == caught.value.code
    with pytest.raises(AllowanceExceeded):
        asyncio.run(send({}))
    assert lab.requests() == 0


def test_the_provider_may_be_named(lab):
    lab.price("groq", GPT, 7, 7)
    with lab.sdk("openai") as original:
        create(allowance.meter(original, provider="groq"))
    assert (lab.row().provider, lab.row().cost_micros) == ("groq", 7 * 49)


def test_a_known_host_tells_the_provider_and_a_proxy_of_the_environment_is_kept(lab, monkeypatch):
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", lab.provider.anthropic_url)
    lab.price("x-ai", GPT, 7, 7)
    with openai.OpenAI(api_key=KEY, base_url="http://api.x.ai/v1", max_retries=0) as original:
        create(allowance.meter(original))
    assert (lab.row().provider, lab.row().cost_micros) == ("x-ai", 7 * 49)
    assert lab.requests() == 1


def test_mounted_transports_are_kept_and_metered(lab):
    seen = []

    class Counting(httpx2.HTTPTransport):
        def handle_request(self, request):
            seen.append(request.url.path)
            return super().handle_request(request)

    mounts = {"http://127.0.0.1": Counting(verify=CERTIFICATES), "https://elsewhere": None}
    with httpx2.Client(mounts=mounts, verify=CERTIFICATES) as http:
        create(allowance.meter(lab.sdk("openai").with_options(http_client=http)))
    assert seen == ["/v1/chat/completions"]
    assert lab.row().cost_micros == 58


def test_a_cap_of_the_client_holds_for_each_job(lab):
    with lab.client("openai", max_calls=2) as client:
        for _ in range(2):
            with allowance.charge_to(feature="job"):
                create(client)
                create(client)
                with pytest.raises(CapExceeded) as caught:
                    create(client)
    assert (caught.value.amount, caught.value.retry_after_seconds) == (2, None)
    assert lab.requests() == len(lab.rows()) == 4


def test_a_cap_in_dollars(lab):
    # 49 of 58 used twice, then 220 more do not fit into 300
    with (
        lab.client("openai", max_cost="0.0003") as client,
        allowance.charge_to(feature="job"),
    ):
        create(client)
        with pytest.raises(CapExceeded) as caught:
            [create(client) for _ in range(9)]
    facts = caught.value
    assert (facts.unit, facts.amount, facts.needed) == ("cost", 300, RESERVED["openai"])
    assert facts.used + facts.needed > 300 >= facts.used
    assert lab.requests() == len(lab.rows()) == facts.used // 58


def test_a_cap_of_a_client_used_outside_of_any_job_holds_for_its_lifetime(lab):
    with lab.client("openai", max_calls=1) as client:
        create(client)
        with pytest.raises(CapExceeded):
            create(client)


def test_what_cannot_be_metered_is_refused_and_not_sent_case_c74(lab):
    with lab.client("openai", sdk={"max_retries": 2}) as client:
        for send in (
            lambda: client.fine_tuning.jobs.create(model=GPT, training_file="f"),
            lambda: client.audio.transcriptions.create(model="", file=b"RIFF"),
            lambda: client.embeddings.create(model="", input="x"),
            lambda: client.batches.create(
                completion_window="24h", endpoint="/v1/chat/completions", input_file_id="f"
            ),
            lambda: client.post("/brand/new", cast_to=object, body={"model": GPT}),
            lambda: client.post("/chat/completions", cast_to=object, body=["no object"]),
            lambda: client.post("/chat/completions", cast_to=object, body={"messages": ASK}),
        ):
            with pytest.raises(UnmeteredEndpoint):
                send()
    with (
        lab.client("anthropic", sdk={"max_retries": 2}) as client,
        pytest.raises(UnmeteredEndpoint),
    ):
        client.messages.batches.create(requests=[])
    assert lab.requests() == 0
    assert lab.rows() == []


def test_what_cannot_be_metered_passes_when_only_observing(caplog):
    with Lab(MODE="observe") as lab, lab.client("openai") as client:
        with pytest.raises(openai.NotFoundError):
            client.post("/brand/new", cast_to=object, body={"model": GPT})
        assert "goes unmetered" in caplog.text
        assert lab.rows() == []


def test_what_costs_nothing_passes(lab):
    lab.shrink("calls", 0)
    with lab.client("openai") as client:
        assert [model.id for model in client.models.list()]
        assert client.models.retrieve(GPT).id == GPT
        with pytest.raises(openai.NotFoundError):
            client.moderations.create(input="x")
    with lab.client("anthropic") as client:
        assert client.models.list().data
    assert lab.rows() == []


def test_the_raw_response_helper_is_metered_case_c74(lab):
    with lab.client("openai") as client:
        raw = client.chat.completions.with_raw_response.create(
            model=GPT, messages=ASK, max_completion_tokens=100
        )
        assert raw.parse().usage.completion_tokens == 9
        answer = client.post("/chat/completions", cast_to=httpx2.Response, body=BODY)
        assert answer.json()["usage"]["completion_tokens"] == 9
    assert [row.cost_micros for row in lab.rows(2)] == [58, 58]


@pytest.mark.parametrize("other", [object(), "a client", openai, None])
def test_other_things_are_no_clients(other):
    with pytest.raises(TypeError, match=r"allowance\.call"):
        allowance.meter(other)


def test_wrong_words_are_refused_when_the_client_is_made(lab):
    with lab.sdk("openai") as original:
        for wrong in ({"tenant": "*"}, {"user": ""}, {"max_cost": "NaN"}, {"max_cost": "-1"}):
            with pytest.raises(ValueError, match=r"."):
                allowance.meter(original, **wrong)
        with pytest.raises(TypeError):
            allowance.meter(original, max_cost=0.05)


def test_a_client_can_be_metered_before_django_is_set_up():
    code = (
        "from openai import OpenAI; from token_allowance import allowance; "
        "client = allowance.meter(OpenAI(api_key='x'), feature='chat'); "
        "assert type(client) is OpenAI"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_the_body_of_a_request_that_is_no_model_call_is_not_read(lab, asynchronous):
    """An upload of any size is passed on part by part, as its caller meant."""
    taken = []

    class Uploads(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
        def handle_request(self, request):
            taken.append(type(request.stream))
            return httpx2.Response(200)

        async def handle_async_request(self, request):
            return self.handle_request(request)

    def parts():
        yield b"part"

    async def aparts():
        yield b"part"

    async def upload() -> None:
        async with httpx2.AsyncClient(transport=Uploads()) as http:
            await allowance.meter(http).post("http://127.0.0.1/v1/files", content=aparts())

    if asynchronous:
        asyncio.run(upload())
    else:
        with httpx2.Client(transport=Uploads()) as http:
            allowance.meter(http).post("http://127.0.0.1/v1/files", content=parts())
    assert taken
    assert taken[0] is not httpx2.ByteStream
