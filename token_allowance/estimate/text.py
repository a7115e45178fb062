"""How many tokens a text will be, guessed before it is sent.

The guess is meant to lie above the truth for ordinary text of any script (case C44), without a
tokenizer: characters are counted by class, and each class has a weight per family of models. The
weights were fitted to nine public vocabularies, with a margin. Text made to be dense in
tokens (rare ideographs, random letters) can still exceed it; settling charges the truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FAMILIES: Final = ("openai", "anthropic", "gemini", "default")


@dataclass(frozen=True, slots=True)
class _CharacterClass:
    """Characters known by their first UTF-8 byte; hundredths of a token each, as in FAMILIES."""

    name: str
    first_bytes: bytes
    weights: tuple[int, int, int, int]


def _span(first: int, last: int) -> bytes:
    return bytes(range(first, last + 1))


_LOWER = _span(0x61, 0x7A)
_UPPER = _span(0x41, 0x5A)
_DIGITS = _span(0x30, 0x39)
_BREAKS = b"\t\n\v\f\r"
_PUNCTUATION = _span(0x00, 0x7F).translate(None, _LOWER + _UPPER + _DIGITS + _BREAKS + b" ")

_REST: Final = _CharacterClass("lower case", _LOWER, (25, 60, 35, 55))
_ASCII_CLASSES: Final = (
    _CharacterClass("upper case", _UPPER, (120, 165, 90, 150)),
    _CharacterClass("digits", _DIGITS, (95, 90, 150, 135)),
    _CharacterClass("punctuation", _PUNCTUATION, (60, 75, 80, 65)),
    _CharacterClass("space", b" ", (5, 10, 10, 5)),
    _CharacterClass("line breaks", _BREAKS, (155, 5, 35, 180)),
)
_WIDE_CLASSES: Final = (
    _CharacterClass("accented Latin, phonetic", _span(0xC2, 0xCD), (170, 185, 160, 180)),
    _CharacterClass("Greek, Cyrillic", _span(0xCE, 0xD3), (45, 80, 55, 75)),
    _CharacterClass("Armenian, Hebrew, Arabic", _span(0xD4, 0xDF), (50, 100, 65, 115)),
    _CharacterClass("Indic, Thai, Georgian", _span(0xE0, 0xE1), (50, 130, 85, 220)),
    _CharacterClass("symbols", b"\xe2", (25, 200, 25, 40)),
    _CharacterClass("kana, ideographs", _span(0xE3, 0xE9), (90, 135, 80, 130)),
    _CharacterClass("Hangul, full width", _span(0xEA, 0xEF), (95, 165, 105, 150)),
    _CharacterClass("emoji, rare scripts", _span(0xF0, 0xF7), (295, 505, 230, 545)),
)
_ASCII: Final = _span(0x00, 0x7F)
_NOT_ASCII: Final = _span(0x80, 0xFF)
_CONTINUATION: Final = _span(0x80, 0xBF)
# No vocabulary makes more tokens than bytes, but for one family's twelve in a hundred.
_MOST_PER_BYTE: Final = (100, 112, 100, 112)


def text_tokens(text: str, family: str = "default") -> int:
    """Tokens of ``text`` for a family of models, rounded up. ValueError for an unknown family."""
    column = _column(family)
    encoded = text.encode("utf-8", "surrogatepass")
    most = _MOST_PER_BYTE[column] * len(encoded)
    hundredths = 0
    if not text.isascii():
        encoded = encoded.translate(None, _CONTINUATION)  # leaves one byte per character
        wide = encoded.translate(None, _ASCII)
        encoded = encoded.translate(None, _NOT_ASCII)
        hundredths, _ = _weigh(wide, _WIDE_CLASSES, column)
    weight, rest = _weigh(encoded, _ASCII_CLASSES, column)
    hundredths += weight + rest * _REST.weights[column]
    return -(-min(hundredths, most) // 100)


def most_tokens(text: str, family: str = "default") -> int:
    """What no known vocabulary exceeds, even for a text made to: the bytes."""
    return -(-_MOST_PER_BYTE[_column(family)] * len(text.encode("utf-8", "surrogatepass")) // 100)


def _column(family: str) -> int:
    if family not in FAMILIES:
        raise ValueError(f"{family!r} is no model family; use one of {', '.join(FAMILIES)}")
    return FAMILIES.index(family)


def _weigh(characters: bytes, classes: tuple[_CharacterClass, ...], column: int) -> tuple[int, int]:
    """Hundredths of tokens, and how many characters are in none of the classes."""
    hundredths = 0
    rest = len(characters)
    for kind in classes:
        members = len(characters) - len(characters.translate(None, kind.first_bytes))
        hundredths += members * kind.weights[column]
        rest -= members
    return hundredths, rest
