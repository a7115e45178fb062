from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from token_allowance.usage import Usage

KINDS = [f.name for f in fields(Usage)]
usages = st.builds(Usage, **dict.fromkeys(KINDS, st.integers(0, 10**12)))


def test_total_counts_input_and_output_and_no_subset_twice():
    usage = Usage(39_019, 200, cache_read_tokens=35_000, cache_write_tokens=4_000)
    assert usage.total_tokens == 39_219  # case C02
    assert Usage(15, 1_020, reasoning_tokens=661).total_tokens == 1_035  # case C06


@pytest.mark.parametrize("kind", KINDS)
def test_a_negative_count_is_refused_by_name(kind):
    with pytest.raises(ValueError, match=f"{kind} must not be negative, got -1"):
        Usage(**{kind: -1})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1.0, "1", None, True])
def test_a_count_that_is_no_integer_is_refused_by_name(kind, count):
    with pytest.raises(TypeError, match=f"{kind} must be an integer"):
        Usage(**{kind: count})


def test_usage_is_true_when_it_counts_something():
    assert not Usage()
    assert Usage(input_tokens=1)
    assert Usage(output_tokens=1)
    assert Usage(web_searches=1)
    assert not Usage(cache_read_tokens=1, input_audio_tokens=1)  # subsets of nothing


@given(usages, usages)
def test_adding_adds_each_kind(one, other):
    added = one + other
    assert all(getattr(added, k) == getattr(one, k) + getattr(other, k) for k in KINDS)
    assert added == other + one
    assert one + Usage() == one


@given(usages)
def test_usage_survives_json_and_pickling(usage):
    assert Usage.from_dict(json.loads(json.dumps(usage.as_dict()))) == usage
    assert pickle.loads(pickle.dumps(usage)) == usage


def test_counts_of_zero_are_not_written():
    assert Usage(1_180, 212).as_dict() == {"input_tokens": 1_180, "output_tokens": 212}
    assert Usage().as_dict() == {}


def test_an_unknown_kind_is_refused():
    with pytest.raises(TypeError, match="pictures"):
        Usage.from_dict({"pictures": 1})


def test_usage_is_a_value():
    assert len({Usage(1, 2), Usage(1, 2), Usage(2, 1)}) == 2
    with pytest.raises(FrozenInstanceError):
        Usage().input_tokens = 1
