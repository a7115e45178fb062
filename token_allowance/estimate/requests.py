"""The tokens of a request's decoded JSON: its text, its structure, and what is no text in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, TypeGuard

from token_allowance.estimate import media
from token_allowance.estimate.counting import ORDINARY, Counting
from token_allowance.estimate.text import most_tokens, text_tokens

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
_STRUCTURE_TOKENS: Final = 1  # per field or item: brackets, quotes, the frame of a message


class _Place(NamedTuple):
    """Where in a request a value stands: the field it is in, the one around that."""

    field: str = ""
    holder: str = ""
    is_text: bool = False
    is_low: bool = False  # a picture asked to be looked at from afar


def message_tokens(node: object, family: str = "default", counting: Counting = ORDINARY) -> int:
    """Tokens of a decoded JSON part of a request: messages, system prompt, tools, schemas.

    Text, field names and structure are counted as text; pictures, sounds and files by what they
    are (case C43), whether they come as base64, as a data URL, or as an address.
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
            tokens += media.media_tokens(value, family, counting, low_detail=place.is_low)
        else:
            texts.append(value if isinstance(value, str) else str(value))
    count = most_tokens if counting.strict else text_tokens
    return tokens + count("".join(texts), family)


def _children(value: Mapping[str, object], place: _Place) -> Iterator[tuple[object, _Place]]:
    kind = value.get("type")
    is_tool_call = isinstance(kind, str) and kind in _TOOL_CALLS
    is_low = place.is_low or value.get("detail") == "low"
    for name, child in value.items():
        is_text = (
            place.is_text
            or name in _TEXT_FIELDS
            or (name == "input" and is_tool_call)
            or (name == "data" and kind == "text")
        )
        yield child, _Place(name, place.field, is_text, is_low)


def _is_media(value: object, place: _Place) -> TypeGuard[str | bytes | bytearray]:
    if isinstance(value, bytes | bytearray):
        return True
    if not isinstance(value, str) or place.is_text or place.field not in _INLINE_FIELDS:
        return False
    if place.field in _REFERENCE_FIELDS or (place.field == "url" and place.holder in _URL_HOLDERS):
        return value.startswith(_ADDRESSES) or media.is_base64(value)
    return value.startswith("data:") or media.is_base64(value)
