"""The outcome table of DESIGN.md section 6, row by row: the ledger, the counters, the provider."""

from __future__ import annotations

import asyncio
import socket

import anthropic
import httpx2
import openai
import pytest

from project.provider import Reply
from tests.metering import ASK, ESTIMATE, RESERVED, SDKS, Lab, cancelled, create, micros, text_of
from token_allowance.estimate import text_tokens

pytestmark = pytest.mark.django_db(transaction=True)

TEXT = " windy" * 16  # cut by the provider into four equal parts
PACED = Reply(text=TEXT, chunks=4, chunk_delay_seconds=0.2, input_tokens=40)
ways = pytest.mark.parametrize(
    ("asynchronous", "stream"),
    [(False, False), (False, True), (True, False), (True, True)],
    ids=["sync", "sync-stream", "async", "async-stream"],
)
sdks = pytest.mark.parametrize("sdk", SDKS)
both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
FAILURES = (openai.APIConnectionError, anthropic.APIConnectionError, httpx2.TransportError)
REFUSED_BY_PROVIDER = (openai.APIStatusError, anthropic.APIStatusError)


@pytest.fixture
def lab():
    with Lab() as lab:
        yield lab


def estimated(sdk: str, *flags: str):
    """Charged what was reserved."""
    row = "settled", sorted(flags), RESERVED[sdk]
    return row, {"cost": (row[2], 0), "tokens": (ESTIMATE[sdk].total_tokens, 0), "calls": (1, 0)}


def nothing():
    return ("released", [], None), {"cost": (0, 0), "tokens": (0, 0), "calls": (0, 0)}


def charged(sdk: str, input_tokens: int, output_tokens: int, *flags: str):
    row = "settled", sorted(flags), micros(sdk, input_tokens, output_tokens)
    tokens = input_tokens + output_tokens
    return row, {"cost": (row[2], 0), "tokens": (tokens, 0), "calls": (1, 0)}


def assert_ended(lab: Lab, expected) -> None:
    row, figures = expected
    assert lab.ended() == [row]
    assert lab.figures() == figures


@ways
@sdks
def test_reported_usage_is_charged(lab, sdk, asynchronous, stream):
    lab.provider.script([Reply(input_tokens=120, output_tokens=30)])
    lab.ask(sdk, asynchronous=asynchronous, stream=stream)
    assert_ended(lab, charged(sdk, 120, 30))
    row = lab.row()
    assert (row.input_tokens, row.output_tokens) == (120, 30)
    assert row.reserved_micros == RESERVED[sdk]
    assert row.reserved_tokens == ESTIMATE[sdk].total_tokens
    assert (row.provider, row.model) == (sdk, row.requested_model)
    assert row.provider_request_id
    (entry,) = lab.provider.log()
    assert (entry.outcome, entry.stream) == ("completed", stream)
    assert entry.usage is not None


@sdks
@pytest.mark.parametrize("stream", [False, True])
def test_usage_above_the_reservation_is_charged_whole(lab, sdk, stream):
    lab.provider.script([Reply(input_tokens=2_000, output_tokens=900)])
    lab.ask(sdk, stream=stream)
    assert_ended(lab, charged(sdk, 2_000, 900))
    assert lab.row().overage_micros == micros(sdk, 2_000, 900) - RESERVED[sdk] > 0


@ways
@sdks
def test_an_answer_without_usage_is_charged_as_reserved(lab, sdk, asynchronous, stream):
    lab.provider.script([Reply(usage=None, no_usage_even_if_asked=True)])
    lab.ask(sdk, asynchronous=asynchronous, stream=stream)
    assert_ended(lab, estimated(sdk, "estimated", "usage_missing"))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("sdk", "usage"),
    [
        ("openai", {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}),
        ("anthropic", {"input_tokens": 0, "output_tokens": 0}),
    ],
)
def test_a_usage_of_zeros_is_no_usage(lab, sdk, usage, stream):
    lab.provider.script([Reply(usage=usage)])
    lab.ask(sdk, stream=stream)
    assert_ended(lab, estimated(sdk, "estimated", "usage_missing"))


@both
@sdks
def test_a_stream_closed_before_any_content_is_free(lab, sdk, asynchronous):
    lab.provider.script([PACED])

    async def leave() -> None:
        async with lab.aclient(sdk) as client:
            stream = await create(client, stream=True)
            await stream.close()

    if asynchronous:
        asyncio.run(leave())
    else:
        with lab.client(sdk) as client:
            create(client, stream=True).close()
    assert_ended(lab, nothing())
    (entry,) = lab.provider.wait_until_quiet()
    assert entry.outcome == "disconnected"


@ways
@sdks
@pytest.mark.parametrize("status", [400, 429, 500, 529])
def test_an_error_status_is_free(lab, sdk, asynchronous, stream, status):
    lab.provider.script([Reply(status=status)])
    with pytest.raises(REFUSED_BY_PROVIDER) as caught:
        lab.ask(sdk, asynchronous=asynchronous, stream=stream)
    assert caught.value.status_code == status
    assert_ended(lab, nothing())
    assert [entry.outcome for entry in lab.provider.log()] == ["error"]


def test_an_error_status_that_reports_usage_is_charged(lab):
    body = '{"error": {"message": "late"}, "usage": {"prompt_tokens": 50, "completion_tokens": 7}}'
    lab.provider.script([Reply(status=500, body=body)])
    with pytest.raises(openai.APIStatusError):
        lab.ask("openai")
    assert_ended(lab, charged("openai", 50, 7))


@both
@sdks
def test_what_was_never_sent_is_free(lab, sdk, asynchronous):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(FAILURES):
            lab.ask(sdk, asynchronous=asynchronous, sdk={"base_url": nobody})
    assert_ended(lab, nothing())
    assert lab.requests() == 0


@ways
@sdks
def test_a_read_timeout_is_charged_as_reserved(lab, sdk, asynchronous, stream):
    lab.provider.script([Reply(hang=True)])
    with pytest.raises(FAILURES):
        lab.ask(sdk, asynchronous=asynchronous, stream=stream, sdk={"timeout": 0.2})
    assert_ended(lab, estimated(sdk, "uncertain"))
    assert lab.requests() == 1


@both
@sdks
@pytest.mark.parametrize("reply", [Reply(reset_connection=True), Reply(drop_after_chunks=1)])
def test_a_connection_that_broke_is_charged_as_reserved(lab, sdk, asynchronous, reply):
    lab.provider.script([reply])
    with pytest.raises(FAILURES):
        lab.ask(sdk, asynchronous=asynchronous)
    assert_ended(lab, estimated(sdk, "uncertain"))


@sdks
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_cancelled_before_its_headers_is_charged_as_reserved(lab, sdk, stream):
    lab.provider.script([Reply(delay_seconds=5)])

    async def leave() -> None:
        async with lab.aclient(sdk) as client:
            await cancelled(create(client, stream=stream), after=lambda: lab.requests() == 1)

    asyncio.run(leave())
    assert_ended(lab, estimated(sdk, "uncertain"))


def cut_after(sdk: str, chunks: int, *flags: str):
    """Input as reported, which only Anthropic does early; output as the text delivered."""
    text = TEXT[: len(TEXT) * chunks // 4]
    input_tokens = 40 if sdk == "anthropic" else ESTIMATE["openai"].input_tokens
    return charged(sdk, input_tokens, text_tokens(text, sdk), "interrupted", *flags)


@both
@sdks
def test_a_hang_up_after_content_is_charged_for_what_was_delivered(lab, sdk, asynchronous):
    lab.provider.script([PACED])
    seen: list[str] = []

    async def leave() -> None:
        async with lab.aclient(sdk) as client:
            stream = await create(client, stream=True)
            async for event in stream:
                seen.append(text_of(event))
                if len([text for text in seen if text]) == 2:
                    break
            await stream.close()

    if asynchronous:
        asyncio.run(leave())
    else:
        with lab.client(sdk) as client, create(client, stream=True) as stream:
            for event in stream:
                seen.append(text_of(event))
                if len([text for text in seen if text]) == 2:
                    break
    assert "".join(seen) == TEXT[: len(TEXT) // 2]
    assert_ended(lab, cut_after(sdk, 2))


@both
@sdks
def test_a_stream_dropped_after_content_is_charged_for_what_was_delivered(lab, sdk, asynchronous):
    lab.provider.script([Reply(text=TEXT, chunks=4, drop_after_chunks=2, input_tokens=40)])
    with pytest.raises(FAILURES):
        lab.ask(sdk, asynchronous=asynchronous, stream=True)
    assert_ended(lab, cut_after(sdk, 2))


@both
@sdks
def test_an_error_event_after_content_is_charged_for_what_was_delivered(lab, sdk, asynchronous):
    lab.provider.script([Reply(text=TEXT, chunks=4, error_event_after_chunks=2, input_tokens=40)])
    with pytest.raises((openai.APIError, anthropic.APIError)):
        lab.ask(sdk, asynchronous=asynchronous, stream=True)
    assert_ended(lab, cut_after(sdk, 2, "error_partial"))


@pytest.mark.parametrize(
    ("sdk", "reply", "expected"),
    [
        ("openai", Reply(drop_after_chunks=0), estimated("openai", "uncertain")),
        ("openai", Reply(error_event_after_chunks=0), nothing()),
        (
            "anthropic",
            Reply(drop_after_chunks=0, input_tokens=40),
            charged("anthropic", 40, 0, "interrupted"),
        ),
    ],
    ids=["openai-dropped", "openai-failed", "anthropic-dropped"],
)
def test_a_stream_that_ends_before_any_content(lab, sdk, reply, expected):
    lab.provider.script([reply])
    with pytest.raises((openai.APIError, httpx2.TransportError)):
        lab.ask(sdk, stream=True)
    assert_ended(lab, expected)


def test_an_error_after_the_input_was_reported_charges_the_input_case_c34(lab):
    start = {"input_tokens": 20, "cache_read_input_tokens": 50_000, "output_tokens": 1}
    lab.provider.script([Reply(start_usage=start, error_event_after_chunks=0)])
    with pytest.raises(anthropic.APIStatusError):
        lab.ask("anthropic", stream=True)
    row = lab.row()
    assert (row.cost_micros, row.flags) == (15_060, ["error_partial", "interrupted"])
    assert (row.input_tokens, row.cache_read_tokens, row.output_tokens) == (50_020, 50_000, 0)
    assert lab.figures()["cost"] == (15_060, 0)


def test_a_caller_who_hangs_up_pays_for_the_text_not_the_placeholder_case_c38(lab):
    text = " windy" * 200
    start = {"input_tokens": 25, "output_tokens": 1}
    lab.provider.script([Reply(text=text, start_usage=start, chunks=2, chunk_delay_seconds=0.2)])
    with lab.client("anthropic") as client, create(client, stream=True, max_tokens=2_600) as stream:
        for event in stream:
            if text_of(event):
                break
    delivered = text_tokens(text[: len(text) // 2], "anthropic")
    row = lab.row()
    assert delivered > 100
    assert (row.input_tokens, row.output_tokens, row.flags) == (25, delivered, ["interrupted"])
    assert row.cost_micros == 75 + 15 * delivered
    assert lab.figures()["cost"] == (row.cost_micros, 0)


def test_prompts_and_keys_are_nowhere_in_the_row(lab):
    lab.ask("openai")
    row = lab.row()
    kept = " ".join(str(value) for value in vars(row).values())
    assert ASK[0]["content"] not in kept
    assert "Lisbon" not in kept
    assert "sk-never-stored" not in kept


@pytest.mark.django_db(databases=["default", "sqlite"], transaction=True)
@sdks
@pytest.mark.parametrize("stream", [False, True])
def test_the_same_on_sqlite(sdk, stream):
    replies = [Reply(input_tokens=120, output_tokens=30), Reply(status=429), Reply(hang=True)]
    with Lab("sqlite") as lab:
        lab.provider.script(replies)
        lab.ask(sdk, stream=stream)
        with pytest.raises(REFUSED_BY_PROVIDER):
            lab.ask(sdk, stream=stream)
        with pytest.raises(FAILURES):
            lab.ask(sdk, stream=stream, sdk={"timeout": 0.2})
        assert lab.ended() == [
            ("settled", [], micros(sdk, 120, 30)),
            ("released", [], None),
            ("settled", ["uncertain"], RESERVED[sdk]),
        ]
        assert lab.figures()["cost"] == (micros(sdk, 120, 30) + RESERVED[sdk], 0)
