"""What a stream that does not report is charged (cases of kind C)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from project.provider import Reply
from tests.metering import Lab, create, text_of
from token_allowance.estimate import text_tokens

pytestmark = pytest.mark.django_db(databases=["default"], transaction=True)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as lab:
        yield lab


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_c30_a_stream_that_reports_nothing_is_charged_as_reserved(lab, asynchronous):
    """Asked for, and still no usage: the 5,000 reserved are charged, whatever was delivered."""
    lab.price("openai", "m-30", 0, 50)
    lab.provider.script([Reply(text="windy " * 50, chunks=3, no_usage_even_if_asked=True)])
    shown = lab.ask(
        "openai", stream=True, asynchronous=asynchronous, model="m-30", max_completion_tokens=100
    )
    assert len("".join(text_of(event) for event in shown)) == 300
    row = lab.row()
    assert (row.state, row.reserved_micros, row.cost_micros) == ("settled", 5_000, 5_000)
    assert "estimated" in row.flags
    assert lab.figures()["cost"] == (5_000, 0)


def test_c38_of_39075_reserved_what_was_delivered_is_charged(lab):
    """25 tokens in and 1,200 characters out. The case counts a token for each three characters,
    400 in all. We weigh text by what it is (case C44) and never below any vocabulary we know,
    which is more for short words: what is charged lies between the case's and the reservation."""
    lab.price("anthropic", "m-38", 3, 15)
    start = {"input_tokens": 25, "output_tokens": 1}
    text = "windy " * 200
    reply = Reply(text=text, start_usage=start, chunks=1, drop_after_chunks=1)
    lab.provider.script([reply])
    with lab.client("anthropic") as client:
        stream = create(client, stream=True, model="m-38", max_tokens=2_600)
        with stream:
            for event in stream:
                if text_of(event):
                    break
    row = lab.row()
    delivered = text_tokens(text, "anthropic")
    assert (row.input_tokens, row.output_tokens) == (25, delivered)
    assert row.cost_micros == 75 + 15 * delivered
    assert 6_075 <= row.cost_micros < 39_075 <= row.reserved_micros
    assert row.flags == ["interrupted"]
    assert lab.figures()["cost"] == (row.cost_micros, 0)
