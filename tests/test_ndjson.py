"""Lines of JSON are framed alike, however the stream is cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from token_allowance.providers.ndjson import LineFramer

STREAM = b'{"a": 1}\n{"b": "\xc3\xa9"}\r\n\n{"c": 3}'


def frames(chunks: list[bytes], largest: int = 1000):
    framer = LineFramer(largest)
    return [frame for chunk in chunks for frame in framer.feed(chunk)] + framer.end()


def pieces(cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(STREAM) + 1) for cut in cuts), len(STREAM)]
    return [STREAM[start:end] for start, end in pairwise(edges)]


@given(st.lists(st.integers(0, 100)))
def test_case_c35_lines_are_whole_however_the_reads_cut(cuts):
    found = frames(pieces(cuts))
    assert [frame.data for frame in found] == [b'{"a": 1}', b'{"b": "\xc3\xa9"}', b"", b'{"c": 3}']
    assert b"".join(frame.raw for frame in found) == STREAM


@given(st.lists(st.integers(0, 100)))
def test_a_line_too_large_is_passed_on_and_not_read(cuts):
    found = frames(pieces(cuts), largest=10)
    assert b"".join(frame.raw for frame in found) == STREAM
    assert {frame.data for frame in found if not frame.oversize} <= {b'{"a": 1}', b"", b'{"c": 3}'}
    assert found[0].data == b'{"a": 1}'
    assert found[-1].data == b'{"c": 3}'
    assert any(frame.oversize for frame in found)


def test_memory_is_bounded():
    framer = LineFramer(10)
    for _ in range(1000):
        framer.feed(b"x" * 7)
        assert len(framer._held) <= 10
    assert [frame.data for frame in framer.feed(b'\n{"a":1}\n') if not frame.oversize] == [
        b'{"a":1}'
    ]


def test_a_stream_that_ended_with_its_line_has_no_more():
    framer = LineFramer()
    assert [frame.data for frame in framer.feed(b"{}\n")] == [b"{}"]
    assert framer.end() == []
