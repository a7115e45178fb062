"""The estimator beside real tokenizers: ``python -m tests.bench.estimator [--held-out]``.

Needs requirements/corpus.txt. ``--held-out`` fits the weights anew, five times, each time to four
fifths of the kinds, and shows how the fifth fares: kinds that the weights have never seen.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from operator import mul
from time import perf_counter

from tests.corpus import FAMILIES, KINDS, Sample, missing, samples
from token_allowance.estimate import text, text_tokens

FOLDS = 5
ROUNDS = 30
STEPS = (0.7, 0.9, 0.96, 0.99, 1.01, 1.04, 1.1, 1.4)
UNDER = 25  # an estimate below the truth weighs as much as so many above it
KEPT = 0.15  # how strongly the fit holds to the earlier weights
TARGET = 1.02
LOWERED = 0.5  # of the way from an earlier weight down to a fitted one; up it goes all the way
EARLIER = {  # fitted to nine vocabularies and to other texts; where this fit starts
    "openai": (25, 120, 95, 60, 5, 155, 170, 45, 45, 50, 50, 50, 50, 25, 90, 95, 295),
    "anthropic": (60, 165, 90, 75, 10, 5, 185, 80, 80, 100, 100, 130, 130, 200, 135, 165, 505),
    "default": (55, 150, 135, 65, 5, 180, 180, 75, 75, 115, 115, 220, 220, 40, 130, 150, 545),
}


def thirds(value: str, family: str) -> int:
    """One token for three characters."""
    return -(-len(value) // 3)


def two_rates(value: str, family: str) -> int:
    """Four ASCII characters a token, and 1.7 tokens for any other."""
    plain = sum(map(str.isascii, value))
    return int(plain / 4 + (len(value) - plain) * 1.7) + 1


METHODS: dict[str, Callable[[str, str], int]] = {
    "by class": text_tokens,
    "characters / 3": thirds,
    "ASCII / 4 + wide * 1.7": two_rates,
}


def spread(ratios: Sequence[float]) -> str:
    """The share below the truth, and where most of the ratios to it lie."""
    ordered = sorted(ratios)
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * q))] for q in (0.05, 0.5, 0.95)]
    below = sum(ratio < 1 for ratio in ordered) / len(ordered)
    low, median, high = at
    return f"{below:7.1%} {ordered[0]:6.2f} {low:6.2f} {median:7.2f} {high:6.2f}"


def ratios(found: Sequence[Sample], family: str, method: Callable[[str, str], int]) -> list[float]:
    return [method(sample.text, family) / sample.tokens for sample in found]


def fitted(found: Sequence[Sample], family: str) -> list[int]:
    """Weights in hundredths: near the earlier ones, seldom below the truth, little above it.

    Each kind counts the same, however many chunks it has. One weight is moved at a time.
    """
    number = Counter(sample.kind for sample in found)
    rows = [
        ([n / sample.tokens for n in text.counts(sample.text.encode())], 1 / number[sample.kind])
        for sample in found
    ]
    start = [weight / 100 for weight in EARLIER[family]]
    weights, sums = list(start), [sum(map(mul, row, start)) for row, _ in rows]

    def loss(candidates: Sequence[float]) -> float:
        return sum(
            share * (r - TARGET if r > TARGET else UNDER * (TARGET - r))
            for r, (_, share) in zip(candidates, rows, strict=True)
        ) / len(number)

    def kept(place: int, weight: float) -> float:
        return KEPT * abs(weight - start[place]) / (start[place] + 0.1) / len(start)

    for _ in range(ROUNDS):
        before, moved = list(weights), loss(sums)
        for place, weight in enumerate(before):
            best = moved + kept(place, weights[place]), weights[place], sums
            for step in STEPS:
                changed = max(0.0, weight * step)
                trial = [
                    total + (changed - weights[place]) * row[place]
                    for total, (row, _) in zip(sums, rows, strict=True)
                ]
                best = min(best, (loss(trial) + kept(place, changed), changed, trial))
            _, weights[place], sums = best
            moved = loss(sums)
        if weights == before:
            break
    return [
        round(100 * (fit if fit > old else old + LOWERED * (fit - old)))
        for old, fit in zip(start, weights, strict=True)
    ]


def estimated(sample: Sample, weights: Sequence[int]) -> float:
    hundredths: int = sum(map(mul, text.counts(sample.text.encode()), weights))
    return hundredths / 100 / sample.tokens


def held_out(found: Sequence[Sample], family: str) -> list[float]:
    """Ratios of every sample by weights that were fitted without its kind."""
    kinds = sorted(KINDS)
    result = []
    for fold in range(FOLDS):
        away = set(kinds[fold::FOLDS])
        weights = fitted([sample for sample in found if sample.kind not in away], family)
        result += [estimated(sample, weights) for sample in found if sample.kind in away]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.estimator", description=__doc__)
    parser.add_argument("--chunks", type=int, default=12, help="of 2,000 characters, of each kind")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--kinds", action="store_true", help="the median of each kind too")
    arguments = parser.parse_args()
    print(f"{'family':10} {'method':24}   below    min     5%  median    95%")
    for family in FAMILIES:
        if lacking := missing(family):
            print(f"{family:10} not measured: needs {', '.join(sorted(lacking))}")
            continue
        found = samples(family, arguments.chunks)
        for name, method in METHODS.items():
            print(f"{family:10} {name:24} {spread(ratios(found, family, method))}")
        if arguments.held_out:
            print(f"{family:10} {'by class, kind unseen':24} {spread(held_out(found, family))}")
            print(f"{'':10} weights fitted to all kinds: {fitted(found, family)}")
        for kind in KINDS if arguments.kinds else ():
            of_kind = [sample for sample in found if sample.kind == kind]
            print(f"{'':10} {kind:24} {spread(ratios(of_kind, family, text_tokens))}")
        began = perf_counter()
        for sample in found:
            text_tokens(sample.text, family)
        characters = sum(len(sample.text) for sample in found)
        print(f"{'':10} {(perf_counter() - began) * 1e9 / characters:.1f} µs per 1,000 characters")


if __name__ == "__main__":
    main()
