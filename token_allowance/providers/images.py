"""OpenAI's pictures: generations and edits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from token_allowance.estimate import ORDINARY, Counting, message_tokens
from token_allowance.providers.adapter import ModelRequest, Reader, Report, Unasked
from token_allowance.providers.fields import ceiling, label, mapping, numbers, record
from token_allowance.providers.openai_usage import read_newer
from token_allowance.providers.rewriting import AsSent
from token_allowance.usage import Usage

DEFAULT_MODEL = "dall-e-2"  # of the API, where a request names none
# Tokens of the largest picture of each quality; of an unknown one the dearest counts.
PICTURE_TOKENS: Final = {"low": 408, "standard": 1584, "medium": 1584, "hd": 6240, "high": 6240}
MOST_PICTURE_TOKENS: Final = 6240
SEEN_TOKENS: Final = 1600  # of a picture that is to be edited
_DONE = (".completed", ".done")


@dataclass(frozen=True, slots=True)
class Images(AsSent, Unasked):
    """``POST …/images/generations``, ``/edits`` and ``/variations``.

    The newer models report tokens, all of whose output is picture where no details say otherwise;
    the older ones report nothing, and are charged by the picture (case C13).
    """

    family: str = "openai"
    api: str = "images"

    def request(self, body: Mapping[str, Any], counting: Counting = ORDINARY) -> ModelRequest:
        pictures = ceiling(body.get("n")) or 1
        each = PICTURE_TOKENS.get(label(body.get("quality")), MOST_PICTURE_TOKENS)
        seen = SEEN_TOKENS * _pictures_in(body)
        return ModelRequest(
            model=label(body.get("model")) or DEFAULT_MODEL,
            input_tokens=message_tokens(body.get("prompt") or "", self.family, counting) + seen,
            max_output_tokens=each,
            choices=pictures,
            stream=body.get("stream") in (True, "true"),
            expected=Usage(
                images=pictures,
                input_image_tokens=seen,
                output_image_tokens=each * pictures,
            ),
        )

    def response(self, body: bytes) -> Report:
        answer = record(body)
        if answer is None:
            flags = ("unparsed", "usage_missing")
            return Report(None, flags=flags, delivered=bool(body.strip()), complete=True)
        reader = _ImageReader()
        reader.take(answer, len(_list(answer.get("data"))))
        return reader.report()

    def reader(self) -> Reader:
        return _ImageReader()


class _ImageReader:
    def __init__(self) -> None:
        self._usage: Usage | None = None
        self._flags: tuple[str, ...] = ()
        self._others: tuple[tuple[str, Usage], ...] = ()
        self._raw: dict[str, object] = {}
        self._pictures = 0
        self._complete = self._failed = self._unparsed = False

    def event(self, data: bytes, name: str = "") -> None:
        if (event := record(data)) is None:
            self._unparsed |= bool(data) and data.strip() != b"[DONE]"
            return
        kind = label(event.get("type")) or name
        if kind == "error":
            self._failed = True
        elif kind.endswith(_DONE):
            self.take(event, 1)

    def take(self, answer: Mapping[str, Any], pictures: int) -> None:
        self._complete = True
        self._failed |= bool(answer.get("error"))
        self._pictures += pictures
        counts = mapping(answer.get("usage"))
        usage, self._flags = read_picture(counts)
        if usage is not None:  # each picture of a stream has its own
            self._usage = usage if self._usage is None else self._usage + usage
            self._raw = numbers(counts)
        vector = mapping(answer.get("svg_usage"))
        written, _ = read_newer(vector)
        if written is not None:
            self._others += ((label(vector.get("model")), written),)

    def report(self) -> Report:
        usage = self._usage
        if usage is None and self._pictures:
            usage = Usage(images=self._pictures)
        elif usage is not None:
            usage = replace(usage, images=self._pictures)
        flags = (*self._flags, *(("unparsed",) if self._unparsed else ()))
        if self._complete and usage is None:
            flags += ("usage_missing",)
        return Report(
            usage=usage,
            raw=self._raw,
            flags=(*flags, "iterations") if self._others else flags,
            delivered=self._pictures > 0,
            complete=self._complete and not self._failed,
            input_reported=usage is not None and usage.input_tokens > 0,
            failed=self._failed,
            others=self._others,
        )


def read_picture(counts: Mapping[str, Any]) -> tuple[Usage | None, tuple[str, ...]]:
    """The usage of a picture: what comes out is picture unless the details say otherwise (C13)."""
    usage, flags = read_newer(counts)
    if usage is not None and not mapping(counts.get("output_tokens_details")):
        usage = replace(usage, output_image_tokens=usage.output_tokens)
    return usage, flags


def drawn(counts: Mapping[str, Any]) -> Usage | None:
    """What the picture tool of a response has used; None if nothing."""
    if counts.get("cached_tokens") is not None:
        cached = {"cached_tokens": counts["cached_tokens"]}
        details = {**mapping(counts.get("input_tokens_details")), **cached}
        counts = {**counts, "input_tokens_details": details}
    usage, _ = read_picture(counts)
    return usage


def _pictures_in(body: Mapping[str, Any]) -> int:
    """How many pictures are to be edited."""
    given = [value for name, value in body.items() if name.startswith(("image", "mask"))]
    return sum(len(_list(value)) or 1 for value in given if value)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
