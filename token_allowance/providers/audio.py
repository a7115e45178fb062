"""OpenAI's sounds: speech that is written down, and text that is spoken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from token_allowance.estimate import ORDINARY, Counting, message_tokens
from token_allowance.providers.adapter import ModelRequest, Reader, Report, Unasked
from token_allowance.providers.delivered import Delivered
from token_allowance.providers.fields import label, mapping, numbers, record, seconds
from token_allowance.providers.forms import Upload
from token_allowance.providers.openai_usage import read_newer
from token_allowance.providers.rewriting import AsSent
from token_allowance.usage import Usage

# How long a sound may be, by its bytes: of wave files their header tells, others are taken for the
# most compressed speech that is common, 32 kilobits a second. So the guess lies above the truth.
SLOWEST_BYTES_PER_SECOND: Final = 4_000
HEARD_TOKENS_PER_SECOND: Final = 20
WRITTEN_TOKENS_PER_SECOND: Final = 5
SPOKEN_TOKENS_PER_CHARACTER: Final = 2


@dataclass(frozen=True, slots=True)
class Transcriptions(AsSent, Unasked):
    """``POST …/audio/transcriptions`` and ``/translations``: forms with a file.

    What comes back has tokens, a duration, or (as plain text) nothing at all.
    """

    family: str = "openai"
    api: str = "transcriptions"

    def request(self, body: Mapping[str, Any], counting: Counting = ORDINARY) -> ModelRequest:
        model = label(body.get("model"))
        if not model:
            raise ValueError("the transcription request names no model")
        heard = sum(sound_seconds(value) for value in body.values() if isinstance(value, Upload))
        prompt = body.get("prompt")
        text = message_tokens(prompt, self.family, counting) if isinstance(prompt, str) else 0
        return ModelRequest(
            model=model,
            input_tokens=heard * HEARD_TOKENS_PER_SECOND + text,
            max_output_tokens=heard * WRITTEN_TOKENS_PER_SECOND,
            stream=body.get("stream") in (True, "true"),
            expected=Usage(input_audio_tokens=heard * HEARD_TOKENS_PER_SECOND, audio_seconds=heard),
        )

    def response(self, body: bytes) -> Report:
        answer = record(body)
        if answer is None:  # subtitles or plain text: they say nothing of what they cost
            return Report(None, flags=("usage_missing",), delivered=bool(body), complete=True)
        reader = _AudioReader(self.family)
        reader.take(answer)
        return reader.report()

    def reader(self) -> Reader:
        return _AudioReader(self.family)


@dataclass(frozen=True, slots=True)
class Speech(AsSent, Unasked):
    """``POST …/audio/speech``. The answer is sound; only as events does it say what it used."""

    family: str = "openai"
    api: str = "speech"

    def request(self, body: Mapping[str, Any], counting: Counting = ORDINARY) -> ModelRequest:
        model = label(body.get("model"))
        text = body.get("input")
        if not model or not isinstance(text, str):
            raise ValueError("the speech request names no model or no input")
        spoken = len(text) * SPOKEN_TOKENS_PER_CHARACTER
        return ModelRequest(
            model=model,
            input_tokens=message_tokens(text, self.family, counting)
            + message_tokens(body.get("instructions") or "", self.family, counting),
            max_output_tokens=spoken,
            stream=body.get("stream_format") == "sse",
            expected=Usage(output_audio_tokens=spoken, characters=len(text)),
        )

    def response(self, body: bytes) -> Report:
        return Report(None, flags=("usage_missing",), delivered=bool(body), complete=True)

    def reader(self) -> Reader:
        return _AudioReader(self.family, speaks=True)


class _AudioReader:
    def __init__(self, family: str, *, speaks: bool = False) -> None:
        self._delivered = Delivered(family)
        self._speaks = speaks
        self._usage: Usage | None = None
        self._flags: tuple[str, ...] = ()
        self._raw: dict[str, object] = {}
        self._complete = self._failed = self._unparsed = False

    def event(self, data: bytes, name: str = "") -> None:
        if (event := record(data)) is None:
            self._unparsed |= bool(data) and data.strip() != b"[DONE]"
            return
        kind = label(event.get("type")) or name
        if kind == "error":
            self._failed = True
        elif kind.endswith(".delta"):
            self._delivered.add(event.get("delta") or event.get("audio"))
        elif kind.endswith(".done"):
            self.take(event)

    def take(self, answer: Mapping[str, Any]) -> None:
        self._complete = True
        self._failed |= bool(answer.get("error"))
        if not self._delivered.any:
            self._delivered.add(answer.get("text"))
        counts = mapping(answer.get("usage"))
        self._usage, self._flags = read_newer(counts)
        self._raw = numbers(counts)
        if self._usage is None and (heard := seconds(answer.get("duration"))):
            self._usage, self._raw = Usage(audio_seconds=heard), numbers({"seconds": heard})
        elif self._usage is not None and self._speaks:
            self._usage = replace(self._usage, output_audio_tokens=self._usage.output_tokens)

    def report(self) -> Report:
        complete = self._complete and not self._failed
        flags = (*self._flags, *(("unparsed",) if self._unparsed else ()))
        if complete and self._usage is None:
            flags += ("usage_missing",)
        return Report(
            usage=self._usage,
            raw=self._raw,
            flags=flags,
            delivered=self._delivered.any,
            delivered_tokens=0 if self._speaks else self._delivered.tokens,
            complete=complete,
            input_reported=self._usage is not None and self._usage.input_tokens > 0,
            failed=self._failed,
        )


def sound_seconds(sound: Upload) -> int:
    """Started seconds of a sound, at most, by its size."""
    head = sound.head
    rate = SLOWEST_BYTES_PER_SECOND
    if head[:4] == b"RIFF" and head[8:16] == b"WAVEfmt ":
        rate = max(int.from_bytes(head[28:32], "little"), rate)
    return -(-sound.size_bytes // rate)
