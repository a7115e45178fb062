"""Pictures, documents and sounds are counted by what they are, never by their characters (C43)."""

from __future__ import annotations

import base64
import struct
import zlib
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from token_allowance.estimate import Counting, message_tokens
from token_allowance.estimate.media import media_tokens
from token_allowance.estimate.pictures import Size, picture_size, picture_tokens

COUNTING = Counting()


def png(width, height, extra=b""):
    header = struct.pack(">II5B", width, height, 8, 2, 0, 0, 0)
    check = struct.pack(">I", zlib.crc32(b"IHDR" + header))
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + header + check + extra


def jpeg(width, height):
    exif = b"\xff\xe1" + struct.pack(">H", 5_000) + b"\xff\xc0" + bytes(4_996)  # a thumbnail inside
    frame = b"\xff\xff\xc2" + struct.pack(">HBHHB", 11, 8, height, width, 1) + bytes(3)
    return b"\xff\xd8" + exif + frame + bytes(500)


def webp(kind, width, height):
    body = {
        b"VP8X": bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"),
        b"VP8L": b"\x2f" + (width - 1 | height - 1 << 14).to_bytes(4, "little") + bytes(5),
        b"VP8 ": b"\x00\x00\x00\x9d\x01\x2a" + struct.pack("<HH", width, height),
    }[kind]
    return b"RIFF" + bytes(4) + b"WEBP" + kind + struct.pack("<I", len(body)) + body


def gif(width, height):
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(20)


PICTURES = {
    "png": png,
    "jpeg": jpeg,
    "gif": gif,
    **{kind.decode(): partial(webp, kind) for kind in (b"VP8X", b"VP8L", b"VP8 ")},
}


@pytest.mark.parametrize("make", PICTURES.values(), ids=PICTURES.keys())
@pytest.mark.parametrize("size", [(1, 1), (1024, 768), (4032, 3024)])
def test_the_size_is_read_from_the_header(make, size):
    assert picture_size(make(*size)) == size


@given(st.binary(max_size=200), st.sampled_from([*PICTURES.values()]), st.integers(0, 60))
def test_no_bytes_are_too_strange(noise, make, cut):
    for head in (noise, make(640, 480)[:cut], make(640, 480)[:cut] + noise):
        size = picture_size(head)
        assert size is None or min(size) > 0
        assert media_tokens(head, "openai", COUNTING) >= 0


def test_an_absurd_size_is_no_size():
    assert picture_size(png(0, 10)) is None
    assert picture_size(png(2**31, 10)) is None


@pytest.mark.parametrize(
    ("family", "model", "size", "tokens"),
    [
        ("openai", "", (1024, 768), 765),  # four tiles of 170, and 85
        ("openai", "", (512, 512), 255),
        ("openai", "", (8000, 4000), 1_105),  # 2048 by 1024, then 1536 by 768: six tiles
        ("openai", "gpt-4o-mini", (1024, 768), 25_501),
        ("openai", "gpt-5-mini", (1024, 1024), 1_659),  # 1,024 patches
        ("openai", "gpt-5-mini", (9000, 9000), 2_489),  # 1,536 patches and no more
        ("anthropic", "", (1024, 768), 1_049),
        ("anthropic", "", (200, 200), 54),
        ("anthropic", "", (9000, 9000), 4_784),
        ("gemini", "", (384, 384), 258),
        ("gemini", "", (1024, 768), 516),
        ("gemini", "gemini-3.5-flash", (1024, 768), 1_120),
        ("default", "", (1024, 768), 1_049),
    ],
)
def test_each_family_has_its_own_formula(family, model, size, tokens):
    assert picture_tokens(Size(*size), family, model) == tokens


def test_a_picture_looked_at_from_afar_costs_openai_its_base():
    assert picture_tokens(Size(1024, 768), "openai", low_detail=True) == 85
    assert picture_tokens(Size(1024, 768), "anthropic", low_detail=True) == 1_049


def test_case_c43_a_picture_of_1901736_characters():
    """The case allows 1,600 for the picture and 8 for 24 characters; roles and names are ours.

    This one cannot be read, so it is the flat allowance. One that can be costs what its size says.
    """
    url = "data:image/png;base64,"
    unreadable = url + "A" * (1_901_736 - len(url))
    readable = url + base64.b64encode(png(1024, 768, bytes(1_400_000))).decode()

    def tokens(address):
        content = [
            {"type": "input_text", "text": "What is in this picture?"},
            {"type": "input_image", "image_url": address},
        ]
        return message_tokens([{"role": "user", "content": content}], "openai")

    assert 1_608 <= tokens(unreadable) <= 1_660
    assert 765 + 8 <= tokens(readable) <= 825
    assert tokens("https://example.com/a.png") == tokens(unreadable)


ENCODED = base64.b64encode(png(1024, 768, bytes(300_000))).decode()
URL = f"data:image/png;base64,{ENCODED}"
SOURCE = {"type": "base64", "media_type": "image/png", "data": ENCODED}
SHAPES = {
    "chat completions": {"type": "image_url", "image_url": {"url": URL}},
    "chat completions, bare": {"type": "image_url", "image_url": URL},
    "responses": {"type": "input_image", "image_url": URL},
    "responses, tool output": {
        "type": "function_call_output",
        "output": [{"type": "input_image", "image_url": URL}],
    },
    "anthropic": {"type": "image", "source": SOURCE},
    "anthropic, tool result": {
        "type": "tool_result",
        "content": [{"type": "image", "source": SOURCE}],
    },
    "gemini": {"inlineData": {"mimeType": "image/png", "data": ENCODED}},
    "gemini, address-safe": {"inline_data": {"data": ENCODED.replace("+", "-").replace("/", "_")}},
    "ollama": {"role": "user", "images": [ENCODED]},
    "bedrock": {"image": {"format": "png", "source": {"bytes": base64.b64decode(ENCODED)}}},
}


@pytest.mark.parametrize("part", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("family", "tokens"), [("openai", 765), ("anthropic", 1_049)])
def test_case_c43_in_every_shape(part, family, tokens):
    assert tokens < message_tokens(part, family) < tokens + 60


def test_low_detail_is_read_in_both_of_openais_shapes():
    for part in (
        {"type": "input_image", "image_url": URL, "detail": "low"},
        {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
    ):
        assert 85 < message_tokens(part, "openai") < 125


def test_the_model_of_the_request_chooses_the_formula():
    part = SHAPES["responses"]
    plain = message_tokens(part, "openai")
    small = message_tokens(part, "openai", Counting(model="gpt-4o-mini-2024-07-18"))
    assert small - plain == 25_501 - 765


def pdf(pages, body=b""):
    tree = b"<< /Type /Pages /Count %d /Kids [] >>" % pages
    return b"%PDF-1.7\n" + body + b"\n" + tree


@pytest.mark.parametrize(
    ("document", "pages"),
    [
        (pdf(12), 12),
        (pdf(12, bytes(300_000)), 12),  # the tree is at the end
        (b"%PDF-1.4\n" + b"<< /Type /Page /Parent 1 0 R >>" * 3, 3),
        (b"%PDF-1.5\n<< /Linearized 1 /L 900 /O 7 /N 41 /T 9 >>" + bytes(200_000), 41),
        (b"%PDF-1.5\n" + bytes(100_000), 6),  # a page in 20 KB
        (pdf(99_999), 1_000),
    ],
)
def test_a_pdf_is_counted_by_its_pages(document, pages):
    assert media_tokens(document, "anthropic", COUNTING) == 3_000 * pages
    url = "data:application/pdf;base64," + base64.b64encode(document).decode()
    assert media_tokens(url, "anthropic", COUNTING) == 3_000 * pages


def test_a_sound_is_counted_by_its_length():
    wav = b"RIFF" + bytes(4) + b"WAVEfmt " + bytes(12) + struct.pack("<I", 48_000)
    wav += bytes(480_000 - len(wav))  # ten seconds
    assert media_tokens(wav, "openai", COUNTING) == 320
    assert media_tokens(b"ID3" + bytes(39_997), "openai", COUNTING) == 320  # ten at the least


def test_a_film_is_counted_by_its_bytes():
    film = b"\x00\x00\x00\x20ftypisom" + bytes(600_000 - 12)
    assert media_tokens(film, "gemini", COUNTING) == 3_000


def test_a_text_file_is_counted_as_text():
    line = "Ein Ausweis in Textform, größer als er aussieht.\n"
    document = (line * 3_000).encode()
    url = "data:text/plain;base64," + base64.b64encode(document).decode()
    exact = message_tokens(line * 3_000, "openai")
    assert media_tokens(url, "openai", COUNTING) == pytest.approx(exact, rel=0.01)
    strict = media_tokens(url, "openai", Counting(strict=True))
    assert strict == pytest.approx(len(document), rel=0.01)


def test_what_cannot_be_read_is_flat():
    flat = Counting(media_tokens=777)
    for value in (b"PK\x03\x04" + bytes(9_000), "data:image/png,raw", "gs://bucket/film", b""):
        assert media_tokens(value, "openai", flat) == 777


def test_strict_counts_the_text_of_a_request_by_its_bytes():
    message = {"role": "user", "content": "дом"}
    assert (
        message_tokens(message, "openai", Counting(strict=True)) == 2 + len("roleusercontent") + 6
    )
