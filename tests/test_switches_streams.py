"""Streams in flight when a switch is pulled: they finish, unless it cuts them."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import httpx2
import pytest
from django.db import connections
from django.http import StreamingHttpResponse
from django.test import TestCase

from project.provider import Reply
from tests.metering import ASK, CLAUDE, ESTIMATE, GPT, SDKS, Lab, create, micros, text_of, within
from token_allowance import allowance, streams
from token_allowance.attribution import NOBODY
from token_allowance.bodies import AsyncBody, Body, charged
from token_allowance.estimate import text_tokens
from token_allowance.exceptions import SwitchEngaged
from token_allowance.models import Switch

pytestmark = pytest.mark.django_db(transaction=True)

sdks = pytest.mark.parametrize("sdk", SDKS)
both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
#: Four pieces of four tokens, each after a pause in which nothing arrives.
SLOW = Reply(text=" windy" * 16, chunks=4, chunk_delay_seconds=4.0, input_tokens=40)
PAUSING = replace(SLOW, chunk_delay_seconds=2.0)  # where who engages the switch cuts at once
PACED = Reply(text=" windy" * 16, chunks=4, chunk_delay_seconds=0.2, input_tokens=40)
URL = "http://127.0.0.1/v1/chat/completions"
BODY = {"model": GPT, "messages": ASK, "stream": True, "max_tokens": 100}
CUT_SECONDS = 2.5  # the promise is about one; SLOW says nothing for four


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as lab:
        yield lab


def watchers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "token-allowance-streams"]


def pull(**fields: Any) -> None:
    """Engage a switch as another process would: nothing but its row tells this one."""
    row = {"reason": "spend", "by": "ops", "cuts_streams": True, **fields}
    try:
        Switch.objects.create(**row)
    finally:
        if threading.current_thread() is not threading.main_thread():
            connections.close_all()


def read(lab: Lab, sdk: str, pulled: Callable[[], None]) -> tuple[int, float]:
    """Read a stream and pull at its first text: how much came, and seconds until it was cut."""
    seen, at = 0, time.monotonic()
    with lab.client(sdk, feature="agent") as client:
        try:
            for event in create(client, stream=True):
                if text_of(event):
                    seen += 1
                    pulled()
                    at = time.monotonic()
        except SwitchEngaged:
            return seen, time.monotonic() - at
    raise AssertionError("the stream was not cut")


async def aread(lab: Lab, sdk: str, pulled: Callable[[], None]) -> tuple[int, float]:
    seen, at = 0, time.monotonic()
    async with lab.aclient(sdk, feature="agent") as client:
        try:
            async for event in await create(client, stream=True):
                if text_of(event):
                    seen += 1
                    await asyncio.to_thread(pulled)
                    at = time.monotonic()
        except SwitchEngaged:
            return seen, time.monotonic() - at
    raise AssertionError("the stream was not cut")


def charged_for_one_piece(lab: Lab, sdk: str) -> None:
    """What came is charged, once; the provider has seen its caller leave."""
    row = lab.row()
    assert (row.state, row.flags) == ("settled", ["cut", "interrupted"])
    assert row.output_tokens == text_tokens(" windy" * 4, sdk)
    reported = 40 if sdk == "anthropic" else ESTIMATE[sdk].input_tokens
    assert row.cost_micros == micros(sdk, reported, row.output_tokens)
    assert lab.figures()["cost"] == (row.cost_micros, 0)
    (entry,) = lab.provider.wait_until_quiet()
    assert (entry.outcome, entry.chunks_sent) == ("disconnected", 1)


@both
@sdks
def test_a_stream_on_which_nothing_arrives_is_cut_within_about_a_second(
    lab: Lab, sdk: str, asynchronous: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.provider.script([SLOW])
    if asynchronous:
        seen, took = asyncio.run(aread(lab, sdk, lambda: pull(feature="agent")))
    else:
        seen, took = read(lab, sdk, lambda: pull(feature="agent"))
    with capsys.disabled():
        print(f"\n  cut after {took:.2f} s", end="")  # noqa: T201 - the issue asks to see it
    assert (seen, took < CUT_SECONDS) == (1, True), took
    charged_for_one_piece(lab, sdk)


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread looks at the switches: what is cut is cut by who engages one."""
    monkeypatch.setattr(streams, "LINGER_SECONDS", 0.0)
    assert within(lambda: not watchers())
    monkeypatch.setattr(streams, "_may_look", lambda: False)


@both
def test_who_engages_it_in_the_same_process_need_not_wait(
    lab: Lab, unwatched: None, asynchronous: bool
) -> None:
    lab.provider.script([PAUSING])

    def engage() -> None:
        allowance.engage("feature:agent", reason="spend", by="ops", cut_streams=True)

    if asynchronous:
        seen, _ = asyncio.run(aread(lab, "openai", engage))
    else:
        seen, _ = read(lab, "openai", engage)
    assert seen == 1
    charged_for_one_piece(lab, "openai")


def test_it_may_be_engaged_in_the_event_loop_that_reads_the_stream(
    lab: Lab, unwatched: None
) -> None:
    lab.provider.script([PAUSING])

    async def read() -> None:
        async with lab.aclient("openai", feature="agent") as client:
            stream = await create(client, stream=True)
            allowance.engage("feature:agent", reason="spend", by="ops", cut_streams=True)
            with pytest.raises(SwitchEngaged):
                await anext(aiter(stream))

    asyncio.run(read())
    assert lab.row().flags == ["cut"]


def test_the_helpers_of_the_sdks_let_it_through(lab: Lab) -> None:
    lab.provider.script([PAUSING, PAUSING])
    ask: dict[str, Any] = {"model": CLAUDE, "messages": ASK, "max_tokens": 100}
    with (
        lab.client("anthropic", feature="agent") as client,
        client.messages.stream(**ask) as stream,
    ):
        texts = iter(stream.text_stream)
        assert next(texts) == " windy" * 4
        allowance.engage("feature:agent", reason="spend", by="ops", cut_streams=True)
        with pytest.raises(SwitchEngaged):
            next(texts)
    allowance.disengage("feature:agent", by="ops")
    with (
        lab.client("openai", feature="agent") as client,
        client.chat.completions.stream(model=GPT, messages=ASK, max_tokens=100) as stream,
    ):
        next(event for event in stream if getattr(event, "delta", ""))
        allowance.engage("feature:agent", reason="spend", by="ops", cut_streams=True)
        with pytest.raises(SwitchEngaged):
            list(stream)
    assert [row.flags for row in lab.rows(2)] == [["cut", "interrupted"]] * 2


@both
def test_a_connection_that_serves_another_call_by_now_is_left_alone(
    lab: Lab, asynchronous: bool
) -> None:
    """The stream that is over came on the same connection."""
    lab.provider.script([PACED, PACED])

    def both_calls() -> str:
        with lab.client("openai") as client:
            with allowance.charge_to(feature="agent"):
                list(create(client, stream=True))
            with allowance.charge_to(feature="chat"):
                stream = create(client, stream=True)
            allowance.engage("feature:agent", reason="spend", by="ops", cut_streams=True)
            return "".join(map(text_of, stream))

    async def aboth_calls() -> str:
        async with lab.aclient("openai") as client:
            with allowance.charge_to(feature="agent"):
                [event async for event in await create(client, stream=True)]
            with allowance.charge_to(feature="chat"):
                stream = await create(client, stream=True)
            allowance.engage("feature:agent", reason="spend", by="ops", cut_streams=True)
            return "".join([text_of(event) async for event in stream])

    assert (asyncio.run(aboth_calls()) if asynchronous else both_calls()) == " windy" * 16
    assert [row.flags for row in lab.rows(2)] == [[], []]


def test_the_command_line_of_another_process_cuts_it(lab: Lab) -> None:
    lab.provider.script([Reply(text=" windy" * 16, chunks=2, chunk_delay_seconds=30.0)])
    name = connections["default"].settings_dict["NAME"]
    code = (
        "import sys; from tests.races import begin; begin({'default': sys.argv[1]});"
        "from django.core.management import call_command;"
        "call_command('allowance', *sys.argv[2:])"
    )
    words = ("stop", "--feature", "agent", "--reason", "spend", "--cut-streams")

    def stop() -> tuple[str, float]:
        done = subprocess.run(
            [sys.executable, "-c", code, str(name), *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout, time.monotonic()

    with lab.client("openai", {"timeout": 60.0}, feature="agent") as client:
        stream = create(client, stream=True)
        with ThreadPoolExecutor(1) as other:
            stopping = other.submit(stop)
            with pytest.raises(Exception, match="spend") as error:
                list(stream)
            cut_at = time.monotonic()
            text, stopped_at = stopping.result()
    assert "In flight: 1 call, about $" in text
    assert "streams are cut within about a second" in text
    assert cut_at - stopped_at < CUT_SECONDS
    refusal = allowance.find_refusal(error.value)
    assert isinstance(refusal, SwitchEngaged)
    assert (refusal.reason, allowance.problem(refusal)["code"]) == ("spend", "switch_engaged")
    row = lab.row()
    assert (row.state, row.flags, row.cost_micros) == ("released", ["cut"], None)


@both
@sdks
def test_a_switch_that_does_not_cut_lets_it_finish(lab: Lab, sdk: str, asynchronous: bool) -> None:
    lab.provider.script([PACED])
    pull(feature="agent", cuts_streams=False)
    Switch.objects.all().update(feature="other")

    def engage() -> None:
        allowance.engage("feature:agent", reason="spend", by="ops")

    def finish() -> str:
        with lab.client(sdk, feature="agent") as client:
            stream = create(client, stream=True)
            engage()
            return "".join(map(text_of, stream))

    async def afinish() -> str:
        async with lab.aclient(sdk, feature="agent") as client:
            stream = await create(client, stream=True)
            await asyncio.to_thread(engage)
            return "".join([text_of(event) async for event in stream])

    assert (asyncio.run(afinish()) if asynchronous else finish()) == " windy" * 16
    row = lab.row()
    assert (row.state, row.flags, row.output_tokens) == ("settled", [], 16)


@pytest.mark.parametrize(
    "switch", [{"feature": "chat"}, {"user": "bob"}, {"feature": "agent", "percent": 1}]
)
def test_only_what_it_names_is_cut(lab: Lab, switch: dict[str, Any]) -> None:
    lab.provider.script([PACED])
    with lab.client("openai", feature="agent", user="ana") as client:
        stream = create(client, stream=True)
        pull(**switch)
        streams.watch().look()
        assert "".join(map(text_of, stream)) == " windy" * 16


def test_what_is_only_observed_is_not_cut() -> None:
    with Lab(MODE="observe") as lab:
        lab.provider.script([PACED])
        with lab.client("openai", feature="agent") as client:
            stream = create(client, stream=True)
            pull(feature="agent")
            streams.watch().look()
            assert "".join(map(text_of, stream)) == " windy" * 16


def parts(module: Any) -> tuple[Any, list[str]]:
    """A client without a network, whose answer comes in three parts; which of them were asked."""
    asked: list[str] = []

    class Parts(module.SyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            for text in ("one", "two", "three"):
                asked.append(text)
                yield b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % (
                    text.encode()
                )

    def answer(request: Any) -> Any:
        request.read()
        headers = {"content-type": "text/event-stream"}
        return module.Response(200, headers=headers, stream=Parts())

    return module.Client(transport=module.MockTransport(answer)), asked


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_a_transport_without_a_socket_is_left_at_its_next_bytes(lab: Lab, module: Any) -> None:
    http, asked = parts(module)
    client = allowance.meter(http, provider="openai", feature="agent")
    with client, client.stream("POST", URL, json=BODY) as response:
        chunks = response.iter_raw()
        assert b"one" in next(chunks)
        allowance.engage("feature:agent", reason="spend", by="ops", cut_streams=True)
        with pytest.raises(SwitchEngaged, match="spend"):
            next(chunks)
    assert asked == ["one", "two"]
    row = lab.row()
    assert (row.state, row.flags) == ("settled", ["cut", "interrupted"])
    assert row.output_tokens == text_tokens("onetwo", "openai")  # it was sent: it is charged


def test_a_stream_that_its_reader_leaves_after_the_cut_is_charged_the_same(lab: Lab) -> None:
    lab.provider.script([PAUSING])
    with lab.client("openai", feature="agent") as client:
        stream = create(client, stream=True)
        next(event for event in stream if text_of(event))
        allowance.engage("feature:agent", reason="spend", by="ops", cut_streams=True)
        stream.close()
    charged_for_one_piece(lab, "openai")


def test_a_body_that_django_streams_ends_with_a_word_of_the_view(lab: Lab) -> None:
    """The status is sent; what the view catches it can still say in its last event."""
    lab.provider.script([SLOW, SLOW])

    def body(client: Any) -> Iterator[str]:
        try:
            for event in create(client, stream=True):
                if text := text_of(event):
                    yield text
        except allowance.AllowanceError as error:
            yield allowance.problem(error)["code"]

    with lab.client("openai", feature="agent") as client:
        response = charged(StreamingHttpResponse(body(client)), NOBODY)
        assert isinstance(response, StreamingHttpResponse)
        chunks = iter(response)
        assert next(chunks) == b" windy" * 4
        pull(feature="agent")
        assert list(chunks) == [b"switch_engaged"]
        response.close()
    charged_for_one_piece(lab, "openai")


@both
def test_a_body_whose_view_catches_nothing_ends_with_the_refusal(
    lab: Lab, asynchronous: bool
) -> None:
    lab.provider.script([SLOW])

    def body(client: Any) -> Iterator[str]:
        yield from filter(None, map(text_of, create(client, stream=True)))

    async def abody(client: Any) -> AsyncIterator[str]:
        async for event in await create(client, stream=True):
            if text := text_of(event):
                yield text

    async def consume() -> None:
        async with lab.aclient("openai", feature="agent") as client:
            wrapped = AsyncBody(abody(client), NOBODY)
            assert await anext(wrapped)
            await asyncio.to_thread(pull, feature="agent")
            with pytest.raises(SwitchEngaged):
                await anext(wrapped)
            await wrapped.aclose()

    if asynchronous:
        asyncio.run(consume())
    else:
        with lab.client("openai", feature="agent") as client:
            wrapped = Body(body(client), NOBODY)
            assert next(wrapped)
            pull(feature="agent")
            with pytest.raises(SwitchEngaged):
                next(wrapped)
    charged_for_one_piece(lab, "openai")


@both
def test_a_call_by_hand_is_not_extended_under_a_switch_that_cuts(
    lab: Lab, asynchronous: bool
) -> None:
    more = allowance.Usage(output_tokens=10)
    given: dict[str, Any] = {
        "provider": "openai",
        "model": GPT,
        "input_tokens": 10,
        "max_output_tokens": 10,
    }

    def work() -> None:
        with allowance.call(**given, feature="agent") as call:
            call.record(allowance.Usage(input_tokens=10, output_tokens=5))
            call.extend(more)
            pull(feature="agent")
            call.extend(more)

    async def awork() -> None:
        async with allowance.call(**given, feature="agent") as call:
            call.record(allowance.Usage(input_tokens=10, output_tokens=5))
            await call.aextend(more)
            await asyncio.to_thread(pull, feature="agent")
            await call.aextend(more)

    with pytest.raises(SwitchEngaged):
        asyncio.run(awork()) if asynchronous else work()
    row = lab.row()
    assert (row.flags, row.cost_micros) == (["cut", "interrupted"], micros("openai", 10, 5))


def test_a_call_by_hand_goes_on_under_a_switch_that_does_not_cut(lab: Lab) -> None:
    with allowance.call(provider="openai", model=GPT, input_tokens=10, feature="agent") as call:
        allowance.engage("feature:agent", reason="spend", by="ops")
        call.extend(allowance.Usage(output_tokens=10))
        call.record(allowance.Usage(input_tokens=10))
    assert lab.row().flags == []


def test_nobody_watches_where_nothing_streams(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LINGER_SECONDS", 0.0)
    monkeypatch.setattr(streams, "EVERY_SECONDS", 0.05)
    assert within(lambda: not watchers())
    lab.ask("openai")
    assert not watchers()
    lab.provider.script([PACED])
    with lab.client("openai") as client:
        first, second = (create(client, stream=True) for _ in range(2))
        assert len(watchers()) == 1
        first.close()
        second.close()
    assert within(lambda: not watchers())
    lab.rows(3)


def test_an_answer_arrives_and_is_charged_where_no_thread_can_be_had(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            if self.name == "token-allowance-streams":
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(streams, "_watch", streams.Watch())
    monkeypatch.setattr(threading, "Thread", Refused)
    lab.provider.script([Reply(text=" windy" * 16, chunks=4)] * 2)
    for _ in range(2):
        with lab.client("openai") as client:
            assert "".join(filter(None, map(text_of, create(client, stream=True))))
    assert [row.state for row in lab.rows()] == ["settled"] * 2


def test_a_watcher_outlives_a_database_that_is_down(lab: Lab, monkeypatch: Any) -> None:
    monkeypatch.setattr(streams, "EVERY_SECONDS", 0.05)
    lab.provider.script([SLOW])

    def down() -> Any:
        raise allowance.StoreUnavailable("down")

    with lab.client("openai", feature="agent") as client:
        stream = create(client, stream=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("token_allowance.policy.confirmed", down)
            pull(feature="agent")
            time.sleep(0.3)
        with pytest.raises(SwitchEngaged):
            list(stream)
    assert lab.row().flags == ["cut"]


class InsideATestCase(TestCase):
    """Its transaction is seen by its own thread alone: there no thread looks."""

    def test_nobody_watches_and_a_switch_is_obeyed_all_the_same(self) -> None:
        before = len(watchers())
        http, asked = parts(httpx2)
        client = allowance.meter(http, provider="openai", feature="agent")
        with client, client.stream("POST", URL, json=BODY) as response:
            assert len(watchers()) <= before
            chunks = response.iter_raw()
            next(chunks)
            allowance.engage("feature:agent", reason="spend", by="ops", cut_streams=True)
            with pytest.raises(SwitchEngaged):
                next(chunks)
        assert asked == ["one", "two"]


def test_a_forked_child_watches_its_own_streams_only(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = streams.watch()
    monkeypatch.setattr(streams, "_watch", parent)
    monkeypatch.setattr("os.getpid", lambda: parent.pid + 1)
    assert streams.watch() is not parent


def test_an_encrypted_connection_is_shut_without_passing_on_what_is_encrypted(
    tmp_path: Any,
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
         "-days", "2", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=str(certificate))
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor(2) as pool:
        served = pool.submit(server.wrap_socket, theirs, server_side=True)
        with client.wrap_socket(ours, server_hostname="localhost") as here, served.result() as far:
            far.sendall(b"first")
            assert here.recv(100) == b"first"
            waiting = pool.submit(here.recv, 100)
            time.sleep(0.1)
            streams.shut(here)
            assert waiting.result(5) == b""
            assert here.recv(100) == b""
