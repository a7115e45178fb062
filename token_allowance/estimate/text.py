"""How many tokens a text will be, guessed before it is sent.

The guess is meant to lie above the truth for ordinary text of any script (case C44), without a
tokenizer: characters are counted by class, and each class has a weight per family of models. The
weights were fitted to public vocabularies, with a margin; ``python -m tests.bench.estimator`` shows
how they fare, and what a fit that has not seen a kind of text makes of it. Text made to be dense in
tokens (rare ideographs, random letters) can still exceed it; settling charges the truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import mul
from typing import Final, TypeVar

T = TypeVar("T")

FAMILIES: Final = ("openai", "anthropic", "gemini", "default")


@dataclass(frozen=True, slots=True)
class CharacterClass:
    """Characters known by their first UTF-8 byte; hundredths of a token each, as in FAMILIES."""

    name: str
    first_bytes: bytes
    weights: tuple[int, int, int, int]


def _span(first: int, last: int) -> bytes:
    return bytes(range(first, last + 1))


_ASCII: Final = _span(0x00, 0x7F)
_NOT_ASCII: Final = _span(0x80, 0xFF)
_CONTINUATION: Final = _span(0x80, 0xBF)
_LOWER = _span(0x61, 0x7A)
_UPPER = _span(0x41, 0x5A)
_DIGITS = _span(0x30, 0x39)
_BREAKS = b"\t\n\v\f\r"
_PUNCTUATION = _ASCII.translate(None, _LOWER + _UPPER + _DIGITS + _BREAKS + b" ")

ASCII_CLASSES: Final = (
    CharacterClass("lower case", _LOWER, (23, 55, 35, 52)),
    CharacterClass("upper case", _UPPER, (116, 157, 90, 145)),
    CharacterClass("digits", _DIGITS, (94, 94, 150, 127)),
    CharacterClass("punctuation", _PUNCTUATION, (62, 82, 80, 71)),
    CharacterClass("space", b" ", (5, 10, 10, 4)),
    CharacterClass("line breaks", _BREAKS, (121, 5, 35, 117)),
)
WIDE_CLASSES: Final = (
    CharacterClass("accented Latin, phonetic", _span(0xC2, 0xCD), (169, 147, 160, 165)),
    CharacterClass("Greek", _span(0xCE, 0xCF), (43, 79, 55, 103)),
    CharacterClass("Cyrillic", _span(0xD0, 0xD3), (41, 65, 55, 68)),
    CharacterClass("Armenian", _span(0xD4, 0xD5), (42, 88, 65, 234)),
    CharacterClass("Hebrew, Arabic", _span(0xD6, 0xDF), (47, 92, 65, 110)),
    CharacterClass("Indic, Thai", b"\xe0", (46, 116, 85, 190)),
    CharacterClass("Georgian, Khmer, Burmese", b"\xe1", (50, 116, 85, 213)),
    CharacterClass("symbols", b"\xe2", (25, 200, 25, 40)),
    CharacterClass("kana, ideographs", _span(0xE3, 0xE9), (82, 118, 80, 119)),
    CharacterClass("Hangul, full width", _span(0xEA, 0xEF), (85, 146, 105, 141)),
    CharacterClass("emoji, rare scripts", _span(0xF0, 0xF7), (253, 391, 230, 437)),
)
_WIDE_ZEROS: Final = [0] * len(WIDE_CLASSES)
_COLUMNS: Final = {
    family: tuple(kind.weights[column] for kind in (*ASCII_CLASSES, *WIDE_CLASSES))
    for column, family in enumerate(FAMILIES)
}
# No vocabulary makes more tokens than bytes, but for one family's twelve in a hundred.
_MOST_PER_BYTE: Final = {"openai": 100, "anthropic": 112, "gemini": 100, "default": 112}


def text_tokens(text: str, family: str = "default") -> int:
    """Tokens of ``text`` for a family of models, rounded up. ValueError for an unknown family."""
    encoded = text.encode("utf-8", "surrogatepass")
    hundredths: int = sum(map(mul, counts(encoded), weights(family)))
    return -(-min(hundredths, _MOST_PER_BYTE[family] * len(encoded)) // 100)


def most_tokens(text: str, family: str = "default") -> int:
    """What no known vocabulary exceeds, even for a text made to: the bytes."""
    return -(-_of(_MOST_PER_BYTE, family) * len(text.encode("utf-8", "surrogatepass")) // 100)


def weights(family: str) -> tuple[int, ...]:
    """Hundredths of a token for a character of each class, in the order of ``counts``."""
    return _of(_COLUMNS, family)


def counts(encoded: bytes) -> list[int]:
    """The characters of a text in UTF-8, by class: ASCII_CLASSES, then WIDE_CLASSES."""
    if encoded.isascii():
        return _members(encoded, ASCII_CLASSES) + _WIDE_ZEROS
    characters = encoded.translate(None, _CONTINUATION)  # leaves one byte per character
    wide = characters.translate(None, _ASCII)
    ascii_only = characters.translate(None, _NOT_ASCII)
    return _members(ascii_only, ASCII_CLASSES) + _members(wide, WIDE_CLASSES)


def _members(characters: bytes, classes: tuple[CharacterClass, ...]) -> list[int]:
    """How many characters are in each class; the commonest class goes first, and shortens it."""
    found = []
    for kind in classes:
        left = characters.translate(None, kind.first_bytes) if characters else characters
        found.append(len(characters) - len(left))
        characters = left
    return found


def _of(by_family: Mapping[str, T], family: str) -> T:
    if family not in by_family:
        raise ValueError(f"{family!r} is no model family; use one of {', '.join(FAMILIES)}")
    return by_family[family]
