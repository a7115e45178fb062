"""What is not text in a request: recognised by its first bytes, counted by its own rule.

* A picture by its size in pixels (case C43).
* A PDF by its pages, each as a page of dense print that is read and looked at too. Pages that
  cannot be counted are one to 20 KB, and no more than providers take.
* Sound by its length: a WAV says it, anything else is taken for speech of low bit rate.
* A film by its bytes, at a low bit rate and one frame a second.
* A text file as text.
* Whatever is at an address, or cannot be read: ``Counting.media_tokens``.
"""

from __future__ import annotations

import binascii
import re
import string
from typing import Final

from token_allowance.estimate.counting import Counting
from token_allowance.estimate.pictures import picture_size, picture_tokens
from token_allowance.estimate.text import most_tokens, text_tokens

_HEAD_BYTES: Final = 64 * 1024
_LONGEST_PLAIN_WORD: Final = 256
_BASE64: Final = string.ascii_letters.encode() + string.digits.encode() + b"+/-_=\r\n"
_SAMPLE: Final = 1024

_PAGE_TOKENS: Final = 3000
_PAGE_BYTES: Final = 20_000
_MOST_PAGES: Final = 1000
_PAGES: Final = re.compile(rb"/Count\s+(\d{1,5})\b|/Linearized\b[^>]{0,200}?/N\s+(\d{1,5})\b")
_PAGE: Final = re.compile(rb"/Type\s*/Page\b")

_SOUND_TOKENS_PER_SECOND: Final = 32
_SOUND_BYTES_PER_SECOND: Final = 4000
_FILM_TOKENS_PER_SECOND: Final = 300
_FILM_BYTES_PER_SECOND: Final = 60_000
_SOUNDS: Final = (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"\xff\xf1", b"OggS", b"fLaC")
_FILMS: Final = (b"\x1aE\xdf\xa3", b"\x00\x00\x01\xba", b"FLV")
_SOUND_BRANDS: Final = (b"M4A ", b"M4B ")
_CONTROLS: Final = bytes(set(range(0x20)) - set(b"\t\n\v\f\r\x1b"))


def is_base64(text: str) -> bool:
    """Whether a string is too long for a word and of base64's alphabet alone."""
    if len(text) <= _LONGEST_PLAIN_WORD or not text.isascii():
        return False
    return not (
        text[:_SAMPLE].encode().translate(None, _BASE64) or text.encode().translate(None, _BASE64)
    )


def media_tokens(
    value: str | bytes | bytearray, family: str, counting: Counting, *, low_detail: bool = False
) -> int:
    """Tokens of a data URL, of base64, of bytes, or of what is at an address."""
    found = _content(value)
    if found is None:
        return counting.media_tokens
    head, tail, size_bytes = found
    if size := picture_size(head):
        return picture_tokens(size, family, counting.model, low_detail=low_detail)
    if head.startswith(b"%PDF"):
        return _PAGE_TOKENS * _pages(head, tail, size_bytes)
    if seconds := _seconds(head, size_bytes):
        return _SOUND_TOKENS_PER_SECOND * seconds
    if _is_film(head):
        return _FILM_TOKENS_PER_SECOND * -(-size_bytes // _FILM_BYTES_PER_SECOND)
    if (text := _text(head)) is not None:
        count = most_tokens if counting.strict else text_tokens
        return -(-count(text, family) * size_bytes // len(head))
    return counting.media_tokens


def _content(value: str | bytes | bytearray) -> tuple[bytes, bytes, int] | None:
    """The first and the last bytes and the size in bytes; None for an address."""
    if isinstance(value, bytes | bytearray):
        return bytes(value[:_HEAD_BYTES]), bytes(value[-_HEAD_BYTES:]), len(value)
    if value.startswith("data:"):
        form, _, value = value.partition(",")
        if not form.endswith(";base64"):
            return None
    elif "://" in value[:16]:
        return None
    quads = _HEAD_BYTES // 3 * 4 + 4
    tail = value[max(0, (len(value) - quads) // 4 * 4) :]
    return _decoded(value[:quads]), _decoded(tail), len(value) * 3 // 4


def _decoded(text: str) -> bytes:
    encoded = text.encode("ascii", "replace").translate(_URL_ALPHABET, b"=\r\n")
    whole = len(encoded) // 4 * 4
    try:
        return binascii.a2b_base64(encoded[:whole])
    except binascii.Error:
        return b""


_URL_ALPHABET: Final = bytes.maketrans(b"-_", b"+/")


def _pages(head: bytes, tail: bytes, size_bytes: int) -> int:
    both = head + tail
    counted = [int(a or b) for a, b in _PAGES.findall(both)]
    counted.append(len(_PAGE.findall(head)))
    pages = max(counted) or -(-size_bytes // _PAGE_BYTES)
    return min(max(1, pages), _MOST_PAGES)


def _seconds(head: bytes, size_bytes: int) -> int:
    """The length of a sound, rounded up; 0 for what is none."""
    if len(head) >= 32 and head[:4] == b"RIFF" and head[8:16] == b"WAVEfmt ":
        bytes_per_second = int.from_bytes(head[28:32], "little")
        return -(-size_bytes // max(bytes_per_second, 1000))
    if head.startswith(_SOUNDS) or (head[4:8] == b"ftyp" and head[8:12] in _SOUND_BRANDS):
        return -(-size_bytes // _SOUND_BYTES_PER_SECOND)
    return 0


def _is_film(head: bytes) -> bool:
    is_avi = head[:4] == b"RIFF" and head[8:12] == b"AVI "
    return is_avi or head.startswith(_FILMS) or head[4:8] == b"ftyp"


def _text(head: bytes) -> str | None:
    """The text of a file that is nothing but text."""
    if not head or head.translate(None, _CONTROLS) != head:
        return None
    try:
        return head.decode()
    except UnicodeDecodeError as error:  # the last character may be cut
        return head[: error.start].decode() if error.start > len(head) - 4 else None
