"""The estimator beside real tokenizers, on texts of many kinds: a part of tests.bench.estimator."""

from __future__ import annotations

import random
from statistics import median

import pytest

from tests.bench.estimator import METHODS, held_out, ratios
from tests.corpus import CHUNK_CHARACTERS, FAMILIES, KINDS, chunks, missing, samples, tokenizer
from token_allowance.estimate import most_tokens, text_tokens

CHUNKS = 3  # of each kind
BELOW, MEDIAN = 0.05, 1.25
UNSEEN_BELOW, UNSEEN_MEDIAN = 0.08, 1.3
HOSTILE = {
    "rare ideographs": lambda chance: chr(chance.randrange(0x4E00, 0x9FFF)),
    "random Hangul": lambda chance: chr(chance.randrange(0xAC00, 0xD7A3)),
    "random bytes": lambda chance: chr(chance.randrange(0x20, 0x250)),
    "one letter": lambda chance: "a",
    "cuneiform": lambda chance: chr(chance.randrange(0x12000, 0x12300)),
}


@pytest.fixture(params=FAMILIES)
def family(request):
    if lacking := missing(request.param):
        pytest.skip(f"needs {', '.join(sorted(lacking))}: pip install -r requirements/corpus.txt")
    return request.param


def test_the_corpus_has_many_kinds_of_text():
    assert len(KINDS) >= 40
    for kind in KINDS:
        found = chunks(kind)
        assert found, kind
        assert max(map(len, found)) <= CHUNK_CHARACTERS


def test_few_texts_have_more_tokens_than_estimated_and_half_have_nearly_as_many(family):
    found = samples(family, CHUNKS)
    by_class = ratios(found, family, text_tokens)
    assert sum(ratio < 1 for ratio in by_class) <= BELOW * len(by_class)
    assert median(by_class) <= MEDIAN
    for name, method in METHODS.items():
        if method is not text_tokens:
            naive = ratios(found, family, method)
            assert sum(ratio < 1 for ratio in naive) > 0.3 * len(naive), name


def test_weights_that_have_never_seen_a_kind_fare_nearly_as_well(family):
    found = held_out(samples(family, CHUNKS), family)
    assert sum(ratio < 1 for ratio in found) <= UNSEEN_BELOW * len(found)
    assert median(found) <= UNSEEN_MEDIAN


def test_case_c44_no_ordinary_kind_of_text_is_under_estimated_as_a_whole(family):
    found = samples(family, CHUNKS)
    for kind in KINDS:
        tokens = sum(sample.tokens for sample in found if sample.kind == kind)
        guess = sum(text_tokens(s.text, family) for s in found if s.kind == kind)
        assert guess >= tokens, kind


@pytest.mark.parametrize("kind", HOSTILE)
def test_strict_counting_is_never_below_the_truth_even_for_hostile_text(family, kind):
    chance = random.Random(7)
    text = "".join(HOSTILE[kind](chance) for _ in range(1_500))
    assert max(tokenizer(name)(text) for name in FAMILIES[family]) <= most_tokens(text, family)
