"""What one call used, in one normal form for every provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import add, attrgetter
from typing import Final


@dataclass(frozen=True, slots=True)
class Usage:
    """What one call used, by kind. All counts are integers, zero or more.

    ``input_tokens`` is ALL input and ``output_tokens`` ALL output; the other token counts are
    subsets of these two, so that a total never counts a token twice (cases C01 to C06, C12). The
    counts of UNITS are no tokens: providers charge fees for them. Started seconds count.
    Raises ValueError for a negative count and TypeError for one that is not an integer.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0  # within input
    cache_write_tokens: int = 0  # within input: writes of every lifetime
    cache_write_1h_tokens: int = 0  # within cache_write_tokens: the long lifetime
    reasoning_tokens: int = 0  # within output
    input_audio_tokens: int = 0  # within input
    output_audio_tokens: int = 0  # within output
    cache_read_audio_tokens: int = 0  # within cache_read_tokens and within input_audio_tokens
    input_image_tokens: int = 0  # within input
    output_image_tokens: int = 0  # within output
    web_searches: int = 0
    file_searches: int = 0
    images: int = 0  # made
    audio_seconds: int = 0  # heard or spoken
    characters: int = 0  # spoken
    pages: int = 0  # read

    def __post_init__(self) -> None:
        counts = _counts(self)
        if set(map(type, counts)) == _INTEGERS and min(counts) >= 0:
            return
        for name, value in zip(NAMES, counts, strict=True):
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} must be an integer, not {value!r}")
            if value < 0:
                raise ValueError(f"{name} must not be negative, got {value}")

    @property
    def total_tokens(self) -> int:
        """All input plus all output: what a token budget counts."""
        return self.input_tokens + self.output_tokens

    def __bool__(self) -> bool:
        return self.total_tokens > 0 or any(getattr(self, name) for name in UNITS)

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(add, _counts(self), _counts(other)))

    def as_dict(self) -> dict[str, int]:
        """The counts that are not zero, by name."""
        return {name: n for name, n in zip(NAMES, _counts(self), strict=True) if n}

    @classmethod
    def from_dict(cls, counts: Mapping[str, int]) -> Usage:
        return cls(**counts)


NAMES: Final = tuple(field.name for field in fields(Usage))
_counts = attrgetter(*NAMES)
_INTEGERS: Final = {int}
UNITS: Final = tuple(name for name in NAMES if not name.endswith("_tokens"))
