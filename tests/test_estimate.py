from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from token_allowance.estimate import FAMILIES, Counting, message_tokens, text, text_tokens

PICTURE = base64.b64encode(bytes(range(256)) * 8).decode()
PICTURE_URL = f"data:image/png;base64,{PICTURE}"
PDF_URL = f"data:application/pdf;base64,{PICTURE}"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=10,
)


@pytest.mark.parametrize("family", FAMILIES)
def test_case_c44_other_scripts_weigh_more_than_ascii(family):
    chinese, english = "你好世界" * 25, "good day" * 12 + "good"
    assert len(chinese) == len(english) == 100
    assert text_tokens(chinese, family) > 34  # one token per three characters
    assert text_tokens(chinese, family) > 1.5 * text_tokens(english, family)
    assert text_tokens("😀" * 10, family) >= 20


# Own texts, counted with the public vocabulary o200k.
CORPUS = {
    "English": (
        "The meeting was moved to Thursday because two of the speakers "
        "missed their train. Please tell the others, and bring the printed plans with you.",
        28,
    ),
    "German": (
        "Die Besprechung wurde auf Donnerstag verschoben, "
        "weil zwei Vortragende ihren Zug verpasst haben. Bitte sagen Sie es den anderen weiter.",
        28,
    ),
    "Python": (
        "def total(rows):\n    result = 0\n    for row in rows:\n"
        "        if row.amount > 0:\n            result += row.amount\n    return result\n",
        34,
    ),
    "JSON": (
        '{"order": 1042, "items": '
        '[{"sku": "A-17", "count": 3}, {"sku": "B-02", "count": 1}], "paid": true}',
        43,
    ),
    "numbers": ("2026-08-19,1042,17.50,3\n2026-08-20,1043,9.99,1\n2026-08-21,1044,120.00,12\n", 48),
    "base64": (
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
        53,
    ),
    "Russian": ("Встречу перенесли на четверг, потому что двое докладчиков опоздали на поезд.", 22),
    "Arabic": ("تم تأجيل الاجتماع إلى يوم الخميس لأن اثنين من المتحدثين فاتهما القطار.", 20),
    "Hindi": ("बैठक गुरुवार तक टाल दी गई क्योंकि दो वक्ताओं की ट्रेन छूट गई।", 20),
    "Chinese": (
        "会议改到星期四，因为有两位发言人没有赶上火车。请通知其他人，并带上打印好的计划。",
        29,
    ),
    "Japanese": ("二人の講演者が電車に乗り遅れたため、会議は木曜日に変更されました。", 28),
    "Korean": ("발표자 두 명이 기차를 놓쳐서 회의가 목요일로 연기되었습니다.", 22),
    "emoji": ("😀🎉🚀👍🔥🌍🍕🐍💡✅", 16),
}


@pytest.mark.parametrize("kind", CORPUS)
def test_case_c44_the_guess_is_not_below_the_true_count(kind):
    text, tokens = CORPUS[kind]
    assert tokens <= text_tokens(text, "openai") <= 2 * tokens
    assert text_tokens(text, "default") >= tokens


def test_weights_are_applied_by_class():
    assert text_tokens("abcd", "openai") == 1
    assert text_tokens("abcde", "openai") == 2  # 1.25 rounded up
    assert text_tokens("你好", "anthropic") == 3  # 2.70
    assert text_tokens("ABCDEFGHIJ", "gemini") == 9
    assert text_tokens("12345678", "default") == 9  # 10.80 by class, 8.96 by bytes


def test_empty_text_has_no_tokens():
    assert text_tokens("") == 0


def test_every_ascii_character_is_in_one_class():
    members = b"".join(c.first_bytes for c in text.ASCII_CLASSES)
    assert sorted(members) == list(range(128))
    first_bytes = b"".join(c.first_bytes for c in text.WIDE_CLASSES)
    assert sorted(first_bytes) == list(range(0xC2, 0xF8))


def test_an_unknown_family_is_refused():
    with pytest.raises(ValueError, match="openai, anthropic, gemini, default"):
        text_tokens("a", "grok")


@given(st.text(), st.sampled_from(FAMILIES))
def test_the_guess_lies_between_nothing_and_the_bytes(text, family):
    tokens = text_tokens(text, family)
    assert (tokens > 0) == bool(text)
    assert tokens <= -(-len(text.encode("utf-8", "surrogatepass")) * 112 // 100)


@given(st.text(), st.text(), st.sampled_from(FAMILIES))
def test_more_text_never_has_fewer_tokens(one, other, family):
    assert text_tokens(one + other, family) >= text_tokens(one, family)


def test_half_of_a_surrogate_pair_is_counted_not_refused():
    assert text_tokens("\ud83d") > 0


def test_case_c43_a_picture_is_not_text():
    url = "data:image/png;base64,"
    url += "A" * (1_901_736 - len(url))
    content = [
        {"type": "input_text", "text": "What is in this picture?"},
        {"type": "input_image", "image_url": url},
    ]
    tokens = message_tokens([{"role": "user", "content": content}], "openai")
    assert 1_608 <= tokens < 1_700


OPENAI_PART = {"type": "image_url", "image_url": {"url": PICTURE_URL, "detail": "low"}}
ANTHROPIC_SOURCE = {"type": "base64", "media_type": "image/png", "data": PICTURE}
ANTHROPIC_PART = {"type": "image", "source": ANTHROPIC_SOURCE}
MEDIA = {
    "chat completions": OPENAI_PART,
    "chat completions, address": {"image_url": {"url": "https://example.com/a.png"}},
    "chat completions, sound": {"input_audio": {"data": PICTURE, "format": "wav"}},
    "chat completions, file": {"type": "file", "file": {"file_data": PDF_URL}},
    "responses": {"type": "input_image", "image_url": PICTURE_URL},
    "responses, address": {"type": "input_image", "image_url": "https://example.com/a.png"},
    "responses, file": {"type": "input_file", "file_url": "https://example.com/a.pdf"},
    "responses, made picture": {"type": "image_generation_call", "result": PICTURE},
    "anthropic": ANTHROPIC_PART,
    "anthropic, address": {"source": {"type": "url", "url": "http://example.com/a.png"}},
    "anthropic, document": {"type": "document", "source": {"type": "base64", "data": PICTURE}},
    "anthropic, tool result": {"type": "tool_result", "content": [ANTHROPIC_PART]},
    "gemini": {"inlineData": {"mimeType": "image/png", "data": PICTURE}},
    "gemini, snake case": {"inline_data": {"mime_type": "image/png", "data": PICTURE}},
    "gemini, stored": {"fileData": {"fileUri": "gs://bucket/a.mp4"}},
    "ollama": {"role": "user", "images": [PICTURE]},
    "bedrock": {"image": {"format": "png", "source": {"bytes": PICTURE}}},
    "bedrock, bytes": {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}},
}


@pytest.mark.parametrize("part", MEDIA.values(), ids=MEDIA.keys())
def test_case_c43_media_count_a_flat_number_in_every_shape(part):
    without = message_tokens(part, counting=Counting(media_tokens=0))
    assert without < 60
    assert message_tokens(part, counting=Counting(media_tokens=1_600)) == without + 1_600


def test_each_picture_counts():
    parts = [OPENAI_PART, ANTHROPIC_PART, OPENAI_PART]
    flat = message_tokens(parts, counting=Counting(media_tokens=0))
    assert message_tokens(parts, counting=Counting(media_tokens=500)) == flat + 1_500


TEXT = {
    "prose": {"type": "text", "text": f"see {PICTURE_URL}"},
    "string content": {"role": "user", "content": PICTURE},
    "plain document": {"source": {"type": "text", "media_type": "text/plain", "data": PICTURE}},
    "tool input": {"type": "tool_use", "input": {"image_url": "https://example.com/a.png"}},
    "tool arguments": {"function": {"arguments": {"image_url": PICTURE_URL}}},
    "gemini call": {"functionCall": {"args": {"url": PICTURE_URL}}},
    "citation": {"annotations": [{"type": "url_citation", "url": "https://example.com/"}]},
    "search result": {"type": "web_search_result", "url": "https://example.com/"},
    "schema": {"parameters": {"properties": {"image_url": {"default": "https://example.com/"}}}},
    "short word": {"type": "base64", "data": "QUJD"},
    "not base64": {"images": ["a picture of a cat, " * 50]},
}


@pytest.mark.parametrize("part", TEXT.values(), ids=TEXT.keys())
def test_what_the_model_reads_as_text_is_counted_as_text(part):
    assert message_tokens(part, counting=Counting(media_tokens=0)) == message_tokens(
        part, counting=Counting(media_tokens=10**9)
    )
    assert message_tokens(part, counting=Counting(media_tokens=0)) > 5


def test_field_names_and_structure_count():
    bare = text_tokens("hello")
    message = message_tokens({"role": "user", "content": "hello"})
    assert message > bare + text_tokens("roleusercontent")
    tool = {"name": "find", "input_schema": {"type": "object", "properties": {"name": {}}}}
    assert message_tokens([tool, tool]) > 1.8 * message_tokens([tool])


def test_numbers_and_empty_values_count():
    assert message_tokens(12_345) == text_tokens("12345")
    assert message_tokens({"a": None}) > message_tokens({})
    assert message_tokens([]) == message_tokens("") == message_tokens({}) == 0


def test_a_deeply_nested_request_does_not_overflow_the_stack():
    node: object = "end"
    for _ in range(100_000):
        node = [node]
    assert message_tokens(node) >= 100_000
    while isinstance(node, list):  # taken apart by hand: freeing it would recurse
        node = node[0]


@settings(max_examples=30)
@given(json_values, st.sampled_from(FAMILIES))
def test_any_json_has_a_guess(node, family):
    assert message_tokens(node, family) >= 0
