"""How many tokens a text or a request will be, guessed before it is sent.

The guess is meant to lie above the truth for ordinary text of any script (case C44), without a
tokenizer: characters are counted by class, and each class has a weight per family of models. The
weights were fitted to nine public vocabularies, with a margin. Text made to be dense in
tokens (rare ideographs, random letters) can still exceed it; settling charges the truth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

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
_MOST_PER_BYTE: Final = 112


def text_tokens(text: str, family: str = "default") -> int:
    """Tokens of ``text`` for a family of models, rounded up. ValueError for an unknown family."""
    if family not in FAMILIES:
        raise ValueError(f"{family!r} is no model family; use one of {', '.join(FAMILIES)}")
    column = FAMILIES.index(family)
    encoded = text.encode("utf-8", "surrogatepass")
    most = _MOST_PER_BYTE * len(encoded)
    hundredths = 0
    if not text.isascii():
        encoded = encoded.translate(None, _CONTINUATION)  # leaves one byte per character
        wide = encoded.translate(None, _ASCII)
        encoded = encoded.translate(None, _NOT_ASCII)
        hundredths, _ = _weigh(wide, _WIDE_CLASSES, column)
    weight, rest = _weigh(encoded, _ASCII_CLASSES, column)
    hundredths += weight + rest * _REST.weights[column]
    return -(-min(hundredths, most) // 100)


def _weigh(characters: bytes, classes: tuple[_CharacterClass, ...], column: int) -> tuple[int, int]:
    """Hundredths of tokens, and how many characters are in none of the classes."""
    hundredths = 0
    rest = len(characters)
    for kind in classes:
        members = len(characters) - len(characters.translate(None, kind.first_bytes))
        hundredths += members * kind.weights[column]
        rest -= members
    return hundredths, rest


# Requests. Pictures, sounds and files count a flat number of tokens each, whatever their bytes.

_REFERENCE_FIELDS: Final = frozenset(
    ("image_url", "video_url", "audio_url", "document_url", "file_url", "file_uri", "fileUri")
)
_URL_HOLDERS: Final = _REFERENCE_FIELDS | {"source", "image", "file"}
_INLINE_FIELDS: Final = _REFERENCE_FIELDS | {
    *("url", "data", "bytes", "file_data", "images", "image", "audio", "b64_json", "result")
}
# What a tool was called with, or a source quoted: an address in there is text.
_TEXT_FIELDS: Final = frozenset(
    ("arguments", "args", "response", "annotations", "citations", "parameters", "input_schema")
)
_TOOL_CALLS: Final = frozenset(("tool_use", "server_tool_use", "mcp_tool_use"))
_ADDRESSES: Final = ("data:", "http://", "https://", "gs://")
_BASE64: Final = _LOWER + _UPPER + _DIGITS + b"+/-_=\r\n"
_LONGEST_PLAIN_WORD: Final = 256
_STRUCTURE_TOKENS: Final = 1  # per field or item: brackets, quotes, the frame of a message


class _Place(NamedTuple):
    """Where in a request a value stands: the field it is in, the one around that."""

    field: str = ""
    holder: str = ""
    is_text: bool = False


def message_tokens(node: object, family: str = "default", *, media_tokens: int = 1600) -> int:
    """Tokens of a decoded JSON part of a request: messages, system prompt, tools.

    Text, field names and structure are counted; a picture, sound or file is ``media_tokens``,
    whether it is sent as base64, as a data URL or as an address (case C43).
    """
    texts: list[str] = []
    tokens = 0
    waiting: list[tuple[object, _Place]] = [(node, _Place())]
    while waiting:
        value, place = waiting.pop()
        if isinstance(value, Mapping):
            tokens += _STRUCTURE_TOKENS * len(value)
            texts.extend(map(str, value))
            waiting.extend(_children(value, place))
        elif isinstance(value, list | tuple):
            tokens += _STRUCTURE_TOKENS * len(value)
            waiting.extend((item, place) for item in value)
        elif _is_media(value, place):
            tokens += media_tokens
        else:
            texts.append(value if isinstance(value, str) else str(value))
    return tokens + text_tokens("".join(texts), family)


def _children(value: Mapping[str, object], place: _Place) -> Iterator[tuple[object, _Place]]:
    kind = value.get("type")
    is_tool_call = isinstance(kind, str) and kind in _TOOL_CALLS
    for name, child in value.items():
        is_text = (
            place.is_text
            or name in _TEXT_FIELDS
            or (name == "input" and is_tool_call)
            or (name == "data" and kind == "text")
        )
        yield child, _Place(name, place.field, is_text)


def _is_media(value: object, place: _Place) -> bool:
    if isinstance(value, bytes | bytearray):
        return True
    if not isinstance(value, str) or place.is_text or place.field not in _INLINE_FIELDS:
        return False
    if place.field in _REFERENCE_FIELDS or (place.field == "url" and place.holder in _URL_HOLDERS):
        return value.startswith(_ADDRESSES) or _is_base64(value)
    return value.startswith("data:") or _is_base64(value)


def _is_base64(text: str) -> bool:
    if len(text) <= _LONGEST_PLAIN_WORD or not text.isascii():
        return False
    return not text.encode().translate(None, _BASE64)
