"""Google's generateContent through a plain HTTP client: the model is in the address."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import httpx2
import pytest

from tests.metering import Lab
from token_allowance import allowance

pytestmark = pytest.mark.django_db(databases=["default"], transaction=True)
ADDRESS = "https://generativelanguage.googleapis.com/v1beta/models/gemini-x"
ASKED = {
    "contents": [{"role": "user", "parts": [{"text": "Why is the sky blue?"}]}],
    "generationConfig": {"maxOutputTokens": 2_000},
}


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as lab:
        lab.price("google", "gemini-x", Decimal("0.30"), Decimal("2.50"))
        yield lab


def chunk(text: str, output: int, reason: str | None = None) -> dict[str, Any]:
    counts = {"promptTokenCount": 15, "candidatesTokenCount": output, "thoughtsTokenCount": 661}
    return {
        "candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": reason}],
        "usageMetadata": {**counts, "totalTokenCount": 15 + output + 661},
        "modelVersion": "gemini-x",
    }


WHOLE = json.dumps(chunk("Light", 359, "STOP")).encode()
EVENTS = b"".join(
    b"data: %b\r\n\r\n" % json.dumps(part).encode()
    for part in (chunk("Li", 100), chunk("ght", 359, "STOP"))
)


@pytest.mark.parametrize(
    ("method", "content_type", "content"),
    [
        ("generateContent", "application/json", WHOLE),
        ("streamGenerateContent?alt=sse", "text/event-stream", EVENTS),
        ("streamGenerateContent", "application/json", b"[" + WHOLE + b"]"),
    ],
)
def test_c06_a_whole_and_a_streamed_answer_cost_the_same(lab, method, content_type, content):
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=content, headers={"content-type": content_type})

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
        client = allowance.meter(http, feature="sky")
        assert client.post(f"{ADDRESS}:{method}", json=ASKED).content == content
    row = lab.row()
    assert (row.provider, row.model, row.flags) == ("google", "gemini-x", [])
    assert (row.cost_micros, row.cost_exact) == (2_555, Decimal("2554.5"))
    assert row.reasoning_tokens == 661
    assert row.reserved_micros > 2_000 * Decimal("2.5")
