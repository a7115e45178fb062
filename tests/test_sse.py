from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from token_allowance.providers.sse import Frame, Framer

# Case C35: an event over two reads, a comment, a two-byte character, an end without a newline.
C35 = (
    b'data: {"usage":{"prompt_tokens":10,"completion_tokens":5}}\r\n\r\n'
    b": keep-alive\n\n" + 'event: delta\ndata: {"text":"é"}\n\n'.encode() + b"data: [DONE]"
)
C35_EVENTS = [
    (b'{"usage":{"prompt_tokens":10,"completion_tokens":5}}', ""),
    ('{"text":"é"}'.encode(), "delta"),
    (b"[DONE]", ""),
]


def frames_of(*chunks: bytes, largest: int = 1000) -> list[Frame]:
    framer = Framer(largest)
    return [frame for chunk in chunks for frame in framer.feed(chunk)] + framer.end()


def events(frames: list[Frame]) -> list[tuple[bytes, str]]:
    return [(frame.data, frame.event) for frame in frames if frame.data]


def raw(frames: list[Frame]) -> bytes:
    return b"".join(frame.raw for frame in frames)


@pytest.mark.parametrize("at", range(len(C35) + 1))
def test_case_c35_every_split_point_gives_the_same_events(at: int) -> None:
    frames = frames_of(C35[:at], C35[at:])
    assert events(frames) == C35_EVENTS
    assert raw(frames) == C35


def test_case_c35_byte_by_byte() -> None:
    frames = frames_of(*(C35[i : i + 1] for i in range(len(C35))))
    assert events(frames) == C35_EVENTS
    assert raw(frames) == C35


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_all_three_line_ends_frame_alike(end: bytes) -> None:
    stream = end.join([b"event: a", b"data: 1", b"data: 2", b"", b"data: 3", b"", b""])
    for at in range(len(stream) + 1):
        frames = frames_of(stream[:at], stream[at:])
        assert events(frames) == [(b"1\n2", "a"), (b"3", "")]
        assert raw(frames) == stream


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_is_given_out_with_its_last_byte_and_never_held_for_the_next(end: bytes) -> None:
    assert events(Framer().feed(b"data: 1" + end + end)) == [(b"1", "")]


def test_the_line_feed_after_a_split_carriage_return_opens_no_event() -> None:
    framer = Framer()
    first = framer.feed(b"data: 1\r\n\r")
    second = framer.feed(b"\ndata: 2\r\n\r\n")
    assert events(first) == [(b"1", "")]
    assert events(second) == [(b"2", "")]
    assert raw(first + second) == b"data: 1\r\n\r\ndata: 2\r\n\r\n"


def test_a_mark_at_the_start_is_no_part_of_the_first_field() -> None:
    assert events(frames_of(b"\xef\xbb", b"\xbfdata: 1\n\n")) == [(b"1", "")]


def test_only_one_space_after_the_colon_is_dropped() -> None:
    assert events(frames_of(b"data:  a\ndata:b\ndata\nid: 7\n\n")) == [(b" a\nb\n", "")]


def test_a_comment_is_a_frame_without_data() -> None:
    assert frames_of(b": ping\n\n") == [Frame(b": ping\n\n")]


@given(
    st.lists(
        st.sampled_from(
            [b"\n", b"\r", b"\r\n", b"data: ", b"event: e", b":", b"x", b"\xc3", b"\xa9"]
        )
    ),
    st.lists(st.integers(0, 60)),
)
def test_any_stream_in_any_chunks_is_the_same_stream(parts: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(parts)
    places = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
    chunks = [stream[a:b] for a, b in pairwise(places)]
    frames = frames_of(*chunks)
    assert raw(frames) == stream
    assert events(frames) == events(frames_of(stream))


@given(st.binary(max_size=80), st.integers(1, 9), st.integers(1, 20))
def test_an_oversize_event_passes_byte_for_byte(body: bytes, step: int, largest: int) -> None:
    stream = b"data: " + body + b"\n\ndata: 1\r\n\r\n"
    chunks = [stream[i : i + step] for i in range(0, len(stream), step)]
    assert raw(frames_of(*chunks, largest=largest)) == stream


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_an_oversize_event_is_not_read_and_the_next_one_is(step: int, end: bytes) -> None:
    stream = b"data: " + b"x" * 100 + end + b"data: 1" + end
    chunks = [stream[i : i + step] for i in range(0, len(stream), step)]
    frames = frames_of(*chunks, largest=20)
    assert events(frames) == [(b"1", "")]
    assert {frame.data for frame in frames if frame.oversize} == {b""}
    assert raw(frames) == stream


def test_memory_stays_bounded_by_the_largest_event() -> None:
    framer = Framer(1000)
    for _ in range(100):
        framer.feed(b"x" * 300)
        assert len(framer._held) <= 1000


def test_a_large_event_in_small_chunks_takes_linear_time() -> None:
    """Four megabytes in a thousand chunks; searching each time from the start takes minutes."""
    framer = Framer()
    started = time.perf_counter()
    for _ in range(1000):
        framer.feed(b"\nx" * 2048)
    assert time.perf_counter() - started < 5
