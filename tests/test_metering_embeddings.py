"""Embeddings, older completions, pictures and sound through OpenAI's SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import httpx2
import openai
import pytest

from tests.metering import GPT, KEY, Lab
from token_allowance import allowance

pytestmark = pytest.mark.django_db(databases=["default"], transaction=True)
HEADER = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x80\x3e\0\0\0\x7d\0\0\2\0\x10\0data"
WAVE = HEADER + bytes(320_000)  # ten seconds and a little


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as lab:
        yield lab


@contextmanager
def answering(content: Any, content_type: str = "application/json") -> Iterator[openai.OpenAI]:
    """A metered client whose provider always gives this answer."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=body, headers={"content-type": content_type})

    with (
        httpx2.Client(transport=httpx2.MockTransport(answer)) as http,
        openai.OpenAI(api_key=KEY, http_client=http, max_retries=0) as client,
    ):
        yield allowance.meter(client)


def test_embeddings_are_charged_for_their_input(lab):
    lab.price("openai", "text-embedding-3-small", Decimal("0.02"), 0)
    with lab.client("openai") as client:
        made = client.embeddings.create(model="text-embedding-3-small", input=["one", "two"])
        assert len(made.data) == 2
        assert list(made.data[0].embedding) == [0.0, 0.25, 0.5, 1.0]
    row = lab.row()
    assert (row.output_tokens, row.flags, row.cost_micros) == (0, [], 1)
    assert row.input_tokens == made.usage.prompt_tokens > 0
    assert row.reserved_tokens < 20


def test_c18_embeddings_without_usage_are_charged_as_reserved(lab):
    lab.price("openai", "e", 1, 0)
    data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
    with answering({"object": "list", "data": data, "model": "e", "usage": {}}) as client:
        client.embeddings.create(model="e", input="some text", encoding_format="float")
    row = lab.row()
    assert row.flags == ["estimated", "usage_missing"]
    assert row.cost_micros == row.reserved_micros > 0


def test_an_older_completion_is_asked_for_its_usage_when_streamed(lab):
    sent = []
    chunks = [
        {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": GPT,
         "choices": [{"index": 0, "text": "Hi", "finish_reason": "stop", "logprobs": None}]},
        {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": GPT, "choices": [],
         "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}},
    ]  # fmt: skip
    body = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(json.loads(request.content))
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, content=body + b"data: [DONE]\n\n", headers=headers)

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
        client = allowance.meter(openai.OpenAI(api_key=KEY, http_client=http, max_retries=0))
        seen = list(client.completions.create(model=GPT, prompt="x", stream=True))
    assert sent[0]["stream_options"] == {"include_usage": True}
    assert [chunk.choices[0].text for chunk in seen] == ["Hi"]
    assert lab.row().cost_micros == 5 * 1 + 1 * 2


def test_c13_pictures_by_tokens(lab):
    lab.price("openai", "gpt-image", Decimal("0.30"), 10, output_image_mtok=30, image_each=1)
    usage = {"input_tokens": 5, "output_tokens": 1290, "total_tokens": 1295}
    with answering({"created": 1, "data": [{"b64_json": "eA=="}], "usage": usage}) as client:
        client.images.generate(model="gpt-image", prompt="a cat", quality="medium")
    row = lab.row()
    assert (row.cost_micros, row.cost_exact) == (38_702, Decimal("38701.5"))
    assert row.reserved_micros > 1584 * 30


def test_c13_pictures_by_the_piece(lab):
    lab.price("openai", "dall-e-3", 0, 0, image_each=Decimal("0.04"))
    with answering({"created": 1, "data": [{"url": "u"}, {"url": "u"}]}) as client:
        client.images.generate(model="dall-e-3", prompt="a cat", n=2)
    row = lab.row()
    assert (row.reserved_micros, row.cost_micros, row.usage) == (80_000, 80_000, {"images": 2})


def test_a_picture_is_edited_in_a_form(lab):
    lab.price("openai", "gpt-image", 1, 10, input_image_mtok=2, output_image_mtok=30)
    details = {"image_tokens": 300, "text_tokens": 5}
    usage = {"input_tokens": 305, "output_tokens": 100, "total_tokens": 405}
    answer = {"created": 1, "data": [{}], "usage": {**usage, "input_tokens_details": details}}
    with answering(answer) as client:
        client.images.edit(model="gpt-image", prompt="brighter", image=b"\x89PNG" + bytes(9000))
    assert lab.row().cost_micros == 5 * 1 + 300 * 2 + 100 * 30


def test_a_transcription_is_charged_by_tokens_of_sound(lab):
    lab.price("openai", "gpt-4o-transcribe", Decimal("2.5"), 10, input_audio_mtok=6)
    usage = {"type": "tokens", "input_tokens": 100, "output_tokens": 20, "total_tokens": 120,
             "input_token_details": {"audio_tokens": 90, "text_tokens": 10}}  # fmt: skip
    with answering({"text": "hello", "usage": usage}) as client:
        client.audio.transcriptions.create(model="gpt-4o-transcribe", file=("a.wav", WAVE))
    row = lab.row()
    assert row.cost_micros == 25 + 540 + 200
    assert row.usage["input_audio_tokens"] == 90
    assert row.reserved_micros == 11 * 20 * 6 + 11 * 5 * 10  # eleven seconds have begun


def test_a_transcription_is_charged_by_its_length(lab):
    lab.price("openai", "whisper-1", 0, 0, audio_hour=Decimal("0.36"))
    with answering({"text": "hello", "usage": {"type": "duration", "seconds": 10.0}}) as client:
        client.audio.transcriptions.create(model="whisper-1", file=("a.wav", WAVE))
    row = lab.row()
    assert (row.reserved_micros, row.cost_micros) == (1_100, 1_000)
    assert row.usage == {"audio_seconds": 10}


def test_subtitles_are_charged_as_reserved(lab):
    lab.price("openai", "whisper-1", 0, 0, audio_hour=Decimal("0.36"))
    with answering(b"1\n00:00 --> 00:01\nhello\n", "text/plain") as client:
        client.audio.transcriptions.create(
            model="whisper-1", file=("a.wav", WAVE), response_format="srt"
        )
    assert lab.ended() == [("settled", ["estimated", "usage_missing"], 1_100)]


def test_speech_is_charged_by_its_characters_and_arrives_unchanged(lab):
    lab.price("openai", "tts-1", 0, 0, character_million=15)
    sound = bytes(range(256)) * 40
    with answering(sound, "audio/mpeg") as client:
        spoken = client.audio.speech.create(model="tts-1", voice="alloy", input="a" * 1000)
        assert spoken.content == sound
    assert lab.ended() == [("settled", ["estimated", "usage_missing"], 15_000)]


def test_moderation_stays_free(lab):
    lab.shrink("calls", 0)
    with answering({"id": "m", "model": "m", "results": []}) as client:
        client.moderations.create(input="x")
    assert lab.rows() == []
