"""What the figures of a provider mean (cases of kind A), from its own JSON to the charge."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from token_allowance.pricing import Cost, ModelPrice, cost, parts, unpriced
from token_allowance.providers import gemini, openai_usage
from token_allowance.providers.adapter import Adapter, Report
from token_allowance.providers.anthropic import Messages
from token_allowance.providers.audio import Speech, Transcriptions, sound_seconds
from token_allowance.providers.embeddings import Embeddings
from token_allowance.providers.forms import Upload
from token_allowance.providers.images import Images
from token_allowance.providers.openai import ChatCompletions, Completions
from token_allowance.providers.responses import Responses
from token_allowance.usage import Usage


def price(**rates: str) -> ModelPrice:
    given = {"input_mtok": "0", "output_mtok": "0", **rates}
    return ModelPrice(provider="p", model="m", **{k: Decimal(v) for k, v in given.items()})  # type: ignore[arg-type]


def charged(usage: Usage | None, **rates: str) -> Cost:
    assert usage is not None
    return cost(usage, price(**rates))


def answered(adapter: Adapter, **answer: Any) -> Report:
    return adapter.response(json.dumps(answer).encode())


def streamed(adapter: Adapter, *events: dict[str, Any]) -> Report:
    reader = adapter.reader()
    for event in events:
        reader.event(json.dumps(event).encode())
    return reader.report()


def test_c06_thoughts_are_output() -> None:
    counts = {"promptTokenCount": 15, "candidatesTokenCount": 359, "thoughtsTokenCount": 661}
    usage, flags = gemini.read_usage({**counts, "totalTokenCount": 1035})
    assert usage == Usage(15, 1020, reasoning_tokens=661)
    assert flags == ()
    assert charged(usage, input_mtok="0.30", output_mtok="2.50").exact == Decimal("2554.5")
    assert charged(usage, input_mtok="0.30", output_mtok="2.50").micros == 2_555
    assert gemini.read_usage({**counts, "totalTokenCount": 1036})[1] == ("anomaly",)


@pytest.mark.parametrize(
    ("total", "input_tokens", "micros", "flags"),
    [
        (10_820, 10_370, 4_236, ()),
        (570, 120, 1_161, ("anomaly",)),
        (None, 10_370, 4_236, ("anomaly",)),
    ],
)
def test_c11_the_total_tells_whether_tool_tokens_are_within_the_prompt(
    total: int | None, input_tokens: int, micros: int, flags: tuple[str, ...]
) -> None:
    counts = {
        "promptTokenCount": 120,
        "toolUsePromptTokenCount": 10_250,
        "candidatesTokenCount": 300,
        "thoughtsTokenCount": 150,
        "totalTokenCount": total,
    }
    usage, found = gemini.read_usage(counts)
    assert usage is not None
    assert (usage.input_tokens, found) == (input_tokens, flags)
    assert charged(usage, input_mtok="0.30", output_mtok="2.50").micros == micros


def test_c12_sound_has_its_own_rates() -> None:
    counts = {
        "prompt_tokens": 1000,
        "completion_tokens": 500,
        "prompt_tokens_details": {"text_tokens": 200, "audio_tokens": 800},
        "completion_tokens_details": {"text_tokens": 100, "audio_tokens": 400},
    }
    usage, flags = openai_usage.read_usage(counts)
    rates = {"input_mtok": "2.5", "output_mtok": "10"}
    total = charged(usage, **rates, input_audio_mtok="40", output_audio_mtok="80")
    assert flags == ()
    assert total.parts == {
        "input": 500,
        "output": 1_000,
        "input_audio": 32_000,
        "output_audio": 32_000,
    }
    assert total.micros == 65_500


def test_c12_cached_sound_has_the_rate_of_cached_sound() -> None:
    counts = {
        "prompt_tokens": 1000,
        "prompt_tokens_details": {"audio_tokens": 1000, "cached_tokens": 900},
    }
    usage, _ = openai_usage.read_usage(counts)
    assert usage == Usage(
        1000, 0, 900, input_audio_tokens=1000, cache_read_audio_tokens=900
    )  # all input is sound, so what was cached is sound
    rates = {"input_mtok": "1", "input_audio_mtok": "10", "cache_read_audio_mtok": "0.30"}
    assert charged(usage, **rates).micros == 1_270


def test_c13_a_picture_is_charged_by_the_unit_that_is_reported() -> None:
    rates = {"input_mtok": "0.30", "output_image_mtok": "30", "image_each": "0.039"}
    data = [{"b64_json": "x"}]
    report = answered(Images(), data=data, usage={"input_tokens": 5, "output_tokens": 1290})
    assert report.usage == Usage(5, 1290, output_image_tokens=1290, images=1)
    assert charged(report.usage, **rates).exact == Decimal("38701.5")
    assert charged(report.usage, **rates).micros == 38_702
    without = answered(Images(), data=data * 2)
    assert without.usage == Usage(images=2)
    assert charged(without.usage, **rates).micros == 78_000


def test_c13_text_that_comes_with_a_picture_has_the_rate_of_text() -> None:
    details = {"image_tokens": 1000, "text_tokens": 290}
    usage = {"input_tokens": 5, "output_tokens": 1290, "output_tokens_details": details}
    report = answered(Images(), data=[{}], usage=usage)
    assert charged(report.usage, output_mtok="2", output_image_mtok="30").micros == 30_580


SEARCHES = {"web_search_thousand": "10"}


def test_c14a_searches_that_anthropic_counts() -> None:
    used = {"web_search_requests": 2}
    usage = {"input_tokens": 9548, "output_tokens": 528, "server_tool_use": used}
    report = answered(Messages(), type="message", content=[], usage=usage)
    total = charged(report.usage, input_mtok="3", output_mtok="15", **SEARCHES)
    assert total.parts == {"input": 28_644, "output": 7_920, "web_search": 20_000}
    assert total.micros == 56_564


SEARCHED = {"type": "web_search_call", "status": "completed", "action": {"type": "search"}}
OPENED = {"type": "web_search_call", "status": "completed", "action": {"type": "open_page"}}
FAILED = {"type": "web_search_call", "status": "failed"}


@pytest.mark.parametrize(
    ("output", "reported", "micros"),
    [
        pytest.param([], None, 37_152, id="b"),
        pytest.param([SEARCHED], None, 47_152, id="c"),
        pytest.param([SEARCHED, OPENED, FAILED], None, 47_152, id="only what was searched"),
        pytest.param([SEARCHED, SEARCHED], 1, 47_152, id="the provider's own count"),
    ],
)
def test_c14_searches_are_charged_when_made_and_not_when_offered(
    output: list[Any], reported: int | None, micros: int
) -> None:
    answer = {
        "status": "completed",
        "tools": [{"type": "web_search"}],
        "output": output,
        "usage": {"input_tokens": 100, "output_tokens": 4619, "total_tokens": 4719},
    }
    if reported is not None:
        answer["tool_usage"] = {"web_search": {"num_requests": reported}}
    rates = {"input_mtok": "2", "output_mtok": "8", **SEARCHES}
    assert charged(answered(Responses(), **answer).usage, **rates).micros == micros
    final = {"type": "response.completed", "response": answer}
    assert charged(streamed(Responses(), final).usage, **rates).micros == micros


def test_c14_what_may_be_searched_is_reserved() -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]
    body = {"model": "m", "messages": [], "max_tokens": 1, "tools": tools}
    assert Messages().request(body).expected == Usage(web_searches=5)
    asked = {"model": "m", "input": "x", "tools": [{"type": "web_search"}], "max_tool_calls": 3}
    assert Responses().request(asked).expected == Usage(web_searches=3)
    assert Responses().request({"model": "m", "input": "x"}).expected == Usage()


def test_a_search_whose_fee_is_unknown_is_said_to_be() -> None:
    searched = Usage(10, 10, web_searches=1)
    assert unpriced(searched, price(input_mtok="1")) == ["web_searches"]
    assert unpriced(searched, price(input_mtok="1", **SEARCHES)) == []
    assert unpriced(Usage(images=1), price()) == ["images"]
    assert unpriced(Usage(audio_seconds=1), price(audio_hour="0")) == []


C17 = {"prompt_tokens": 9171, "completion_tokens": 113, "total_tokens": 9284}


def test_c17a_with_an_own_key_the_upstream_cost_counts() -> None:
    details = {"upstream_inference_cost": 0.0360795}
    byok = {**C17, "cost": 0, "is_byok": True, "cost_details": details}
    assert openai_usage.reported_dollars(byok) == Decimal("0.0360795")
    assert openai_usage.reported_dollars({**byok, "cost": 0.001}) == Decimal("0.0370795")
    assert openai_usage.reported_dollars({**byok, "cost_details": None}) is None


@pytest.mark.parametrize("cost", [None, -1_000_000, "NaN", "Infinity", True, [], 1e300])
def test_c17_a_cost_that_is_none_is_no_cost(cost: object) -> None:
    assert openai_usage.reported_dollars({**C17, "cost": cost}) is None


def test_c33_a_response_that_is_cut_or_fails_is_charged_for_what_it_reports() -> None:
    def ended(kind: str, usage: dict[str, int] | None) -> Report:
        response: dict[str, Any] = {"id": "resp_1", "status": kind, "usage": usage, "output": []}
        return streamed(
            Responses(),
            {"type": "response.created", "response": {**response, "status": "in_progress"}},
            {"type": f"response.{kind}", "response": response},
        )

    rates = {"input_mtok": "1.25", "output_mtok": "10"}
    cut = ended("incomplete", {"input_tokens": 2300, "output_tokens": 4096})
    assert cut.complete
    assert charged(cut.usage, **rates).micros == 43_835
    nothing = ended("failed", None)
    assert (nothing.usage, nothing.complete, nothing.failed) == (None, False, True)
    failed = ended("failed", {"input_tokens": 2300, "output_tokens": 10})
    assert failed.complete
    assert charged(failed.usage, **rates).micros == 2_975


def test_a_response_in_the_background_says_under_which_id_it_will_be_found() -> None:
    waiting = {"id": "resp_1", "status": "queued", "background": True, "usage": None}
    report = answered(Responses(), **waiting)
    assert (report.deferred_id, report.complete, report.usage) == ("resp_1", False, None)
    assert answered(Responses(), **{**waiting, "background": False}).deferred_id == ""
    done = {**waiting, "status": "completed", "usage": {"input_tokens": 1, "output_tokens": 1}}
    assert answered(Responses(), **done).deferred_id == ""


def test_pictures_that_a_response_draws_are_the_work_of_another_model() -> None:
    drawn = {"input_tokens": 50, "output_tokens": 1000, "total_tokens": 1050}
    report = answered(
        Responses(),
        status="completed",
        tools=[{"type": "image_generation", "model": "gpt-image-2"}],
        usage={"input_tokens": 10, "output_tokens": 5},
        tool_usage={"image_gen": drawn, "web_search": {"num_requests": 0}},
    )
    assert report.usage == Usage(10, 5)
    assert report.others == (("gpt-image-2", Usage(50, 1000, output_image_tokens=1000)),)
    assert report.flags == ("iterations",)


def test_cache_writes_of_a_response_have_two_lifetimes() -> None:
    split = {"ttl_30m_tokens": 60, "ttl_12h_tokens": 40}
    details = {"cached_tokens": 24, "cache_write_tokens": 100, "cache_write_tokens_details": split}
    usage = {"input_tokens": 200, "input_tokens_details": details, "output_tokens": 1}
    report = answered(Responses(), status="completed", usage=usage)
    assert report.usage == Usage(200, 1, 24, 100, 40)


MESSAGE = {"type": "message", "input_tokens": 100, "output_tokens": 20}
COMPACTION = {"type": "compaction", "input_tokens": 3000, "output_tokens": 400}
ADVICE = {"type": "advisor_message", "model": "big", "input_tokens": 500, "output_tokens": 50}


@pytest.mark.parametrize(
    ("totals", "iterations", "usage", "others"),
    [
        pytest.param((100, 20), [MESSAGE], Usage(100, 20), (), id="only messages"),
        pytest.param(
            (100, 20), [MESSAGE, COMPACTION], Usage(3100, 420), (), id="compaction is beside"
        ),
        pytest.param(
            (100, 20), [MESSAGE, ADVICE], Usage(100, 20), (("big", Usage(500, 50)),), id="beside"
        ),
        pytest.param(
            (600, 70), [MESSAGE, ADVICE], Usage(100, 20), (("big", Usage(500, 50)),), id="within"
        ),
    ],
)
def test_work_that_the_totals_leave_out_is_charged(
    totals: tuple[int, int], iterations: list[Any], usage: Usage, others: Any
) -> None:
    counts = {"input_tokens": totals[0], "output_tokens": totals[1], "iterations": iterations}
    report = answered(Messages(), type="message", content=[], usage=counts)
    assert (report.usage, report.others) == (usage, others)
    assert "iterations" in report.flags


def test_the_speed_that_was_served_decides_the_tier() -> None:
    usage = {"input_tokens": 1, "output_tokens": 1, "service_tier": "standard"}
    fast = answered(Messages(), type="message", content=[], usage={**usage, "speed": "fast"})
    slow = answered(Messages(), type="message", content=[], usage={**usage, "speed": "standard"})
    assert (fast.service_tier, slow.service_tier) == ("fast", "standard")
    asked = {"model": "m", "messages": [], "max_tokens": 1, "speed": "fast"}
    assert Messages().request(asked).service_tier == "fast"


def test_embeddings_have_no_output() -> None:
    asked = Embeddings().request({"model": "m", "input": [[1, 2, 3], [4, 5]]})
    assert (asked.input_tokens, asked.max_output_tokens) == (5, 0)
    report = answered(Embeddings(), data=[{}], usage={"prompt_tokens": 8, "total_tokens": 8})
    assert (report.usage, report.flags) == (Usage(8), ())


def test_c18_an_embedding_without_a_prompt_count_has_its_total() -> None:
    usage = {"prompt_tokens": None, "total_tokens": 7}
    report = answered(Embeddings(), data=[{}], usage=usage)
    assert charged(report.usage, input_mtok="0.12").micros == 1
    missing = answered(Embeddings(), data=[{}], usage={})
    assert (missing.usage, missing.flags) == (None, ("usage_missing",))


def test_each_prompt_of_a_completion_is_answered() -> None:
    body = {"model": "m", "prompt": ["a b c", "d"], "n": 2, "best_of": 3, "max_tokens": 10}
    asked = Completions().request(body)
    assert (asked.choices, asked.max_output_tokens) == (6, 10)
    assert Completions().request({"model": "m", "prompt": "x"}).max_output_tokens == 16
    report = answered(
        Completions(),
        choices=[{"index": 0, "text": "Hi there", "finish_reason": "stop"}],
        usage={"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    )
    assert (report.usage, report.delivered) == (Usage(5, 2), True)


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        ({"usage": {"type": "duration", "seconds": 12.4}}, Usage(audio_seconds=13)),
        ({"duration": "3.0"}, Usage(audio_seconds=3)),
        (
            {
                "usage": {
                    "type": "tokens",
                    "input_tokens": 14,
                    "output_tokens": 45,
                    "total_tokens": 59,
                    "input_token_details": {"text_tokens": 0, "audio_tokens": 14},
                }
            },
            Usage(14, 45, input_audio_tokens=14),
        ),
    ],
)
def test_a_transcription_has_tokens_or_a_duration(answer: dict[str, Any], usage: Usage) -> None:
    assert answered(Transcriptions(), text="hello", **answer).usage == usage
    done = {"type": "transcript.text.done", "text": "hello", **answer}
    assert (
        streamed(Transcriptions(), {"type": "transcript.text.delta", "delta": "he"}, done).usage
        == usage
    )


def test_subtitles_do_not_say_what_they_cost() -> None:
    report = Transcriptions().response(b"1\n00:00:00,000 --> 00:00:01,000\nhello\n")
    assert (report.usage, report.flags, report.delivered) == (None, ("usage_missing",), True)


def test_the_length_of_a_sound_is_guessed_from_its_bytes() -> None:
    header = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x80\x3e\0\0\0\x7d\0\0\2\0\x10\0data"
    assert sound_seconds(Upload(64_000, header)) == 2  # 32,000 bytes a second
    assert sound_seconds(Upload(40_001, b"ID3")) == 11


def test_speech_is_charged_by_characters_or_by_tokens_of_sound() -> None:
    asked = Speech().request({"model": "tts-1", "input": "abcdé", "voice": "x"})
    assert asked.expected == Usage(output_audio_tokens=10, characters=5)
    assert Speech().response(b"ID3\0").usage is None
    done = {"type": "speech.audio.done", "usage": {"input_tokens": 4, "output_tokens": 101}}
    assert streamed(Speech(), done).usage == Usage(4, 101, output_audio_tokens=101)


def test_sound_that_is_asked_for_is_reserved_at_its_rate() -> None:
    body = {"model": "m", "messages": [], "modalities": ["text", "audio"]}
    expected = ChatCompletions().request(body).expected
    usage = Usage(10, 100) + expected
    assert charged(usage, output_mtok="1", output_audio_mtok="8").micros == 800


def test_the_chunks_of_a_gemini_stream_are_cumulative() -> None:
    def chunk(text: str, output: int, reason: str | None = None) -> dict[str, Any]:
        parts = {"content": {"parts": [{"text": text}]}, "finishReason": reason}
        counts = {"promptTokenCount": 20, "candidatesTokenCount": output}
        usage = {**counts, "totalTokenCount": 20 + output}
        return {"candidates": [parts], "usageMetadata": usage, "modelVersion": "gemini-3"}

    adapter = gemini.GenerateContent(streams=True)
    cut = streamed(adapter, chunk("Hel", 3))
    assert (cut.usage, cut.complete) == (Usage(20, 3), False)
    whole = streamed(adapter, chunk("Hel", 3), chunk("lo", 5, "STOP"))
    assert (whole.usage, whole.complete, whole.model) == (Usage(20, 5), True, "gemini-3")
    listed = adapter.response(json.dumps([chunk("Hel", 3), chunk("lo", 5, "STOP")]).encode())
    assert listed.usage == Usage(20, 5)


def test_searches_and_sound_of_gemini() -> None:
    report = answered(
        gemini.GenerateContent(),
        candidates=[{
            "content": {"parts": [{"text": "x"}]}, "finishReason": "STOP",
            "groundingMetadata": {"webSearchQueries": ["a", "b"]},
        }],
        usageMetadata={
            "promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110,
            "cachedContentTokenCount": 50,
            "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 80}],
            "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 40}],
        },
    )  # fmt: skip
    assert report.usage == Usage(
        100, 10, 50, web_searches=2, input_audio_tokens=80, cache_read_audio_tokens=40
    )


def test_every_token_is_in_exactly_one_part() -> None:
    usage = Usage(1000, 500, 300, 200, 50, 100, 400, 300, 100, 150, 100)
    found = {part.kind: part.number for part in parts(usage, price())}
    assert found == {
        "input": 50,
        "output": 100,
        "cache_read": 200,
        "cache_write_5m": 150,
        "cache_write_1h": 50,
        "input_audio": 300,
        "output_audio": 300,
        "cache_read_audio": 100,
        "input_image": 150,
        "output_image": 100,
    }
    assert sum(found.values()) == usage.total_tokens
