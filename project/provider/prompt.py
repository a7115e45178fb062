"""How many tokens a prompt has, and how many of them the provider has seen before."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

from project.provider.request import ModelRequest

MESSAGE_TOKENS = 3
MEDIA_TOKENS = 300
MEDIA_TYPES = frozenset({"image", "image_url", "input_audio", "file", "document"})
PREFIXES_MAX = 100_000


class Prompt(NamedTuple):
    """Tokens of a prompt: all of it, the part read from a cache, the part written to one."""

    input_tokens: int
    cached_tokens: int = 0
    written_tokens: int = 0
    one_hour: bool = False


class PromptCache:
    """Remembers the digests of prompt prefixes, never their text.

    A prefix is cached once an earlier request began with the same messages. The last message of a
    request never counts as cached, so that a single message costs the same however often it comes.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def clear(self) -> None:
        self._seen.clear()

    def read(self, request: ModelRequest) -> Prompt:
        """Count a prompt and remember its prefixes."""
        digest, total, cached, before_last, unbroken = request.model.encode(), 0, 0, 0, True
        blocks = list(_blocks(request))
        for position, block in enumerate(blocks, start=1):
            data = json.dumps(block, sort_keys=True).encode()
            digest = blake2b(data, key=digest[:64], digest_size=16).digest()
            total += MESSAGE_TOKENS + tokens(block)
            unbroken = unbroken and digest in self._seen
            if position < len(blocks):
                before_last = total
                cached = total if unbroken else cached
            self._remember(digest)
        wanted, one_hour = _cache_control(request)
        written = before_last - cached if wanted else 0
        return Prompt(total, cached, written, one_hour)

    def _remember(self, digest: bytes) -> None:
        self._seen[digest] = None
        self._seen.move_to_end(digest)
        if len(self._seen) > PREFIXES_MAX:
            self._seen.popitem(last=False)


def tokens(value: Any) -> int:
    """Plausible tokens of a JSON value: about two for every nine bytes of text."""
    size, media = _size(value)
    return -(-size * 2 // 9) + media * MEDIA_TOKENS


def _blocks(request: ModelRequest) -> Iterator[Any]:
    head = {name: request.body[name] for name in ("tools", "system") if request.body.get(name)}
    if head:
        yield head
    yield from request.messages


def _size(value: Any) -> tuple[int, int]:
    """Bytes of text, and number of media parts."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass")), 0
    if isinstance(value, dict):
        if value.get("type") in MEDIA_TYPES:
            return 0, 1
        value = list(value.values())
    if isinstance(value, list):
        sizes = [_size(item) for item in value]
        return sum(size for size, _ in sizes), sum(media for _, media in sizes)
    return 0, 0


def _cache_control(request: ModelRequest) -> tuple[bool, bool]:
    """Whether the caller asked for the prefix to be cached, and for one hour (Anthropic only)."""
    if request.api != "anthropic":
        return False, False
    found = list(_controls(request.body))
    return bool(found), any(control.get("ttl") == "1h" for control in found)


def _controls(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        control = value.get("cache_control")
        if isinstance(control, dict):
            yield control
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _controls(item)
