"""What one call used, in one normal form for every provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one call, by kind. All counts are integers, zero or more.

    ``input_tokens`` is ALL input and ``output_tokens`` ALL output; the other counts are subsets of
    these two, so that a total never counts a token twice (cases C01 to C06).
    Raises ValueError for a negative count and TypeError for one that is not an integer.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0  # within input
    cache_write_tokens: int = 0  # within input: writes of every lifetime
    cache_write_1h_tokens: int = 0  # within cache_write_tokens
    reasoning_tokens: int = 0  # within output

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{field.name} must be an integer, not {value!r}")
            if value < 0:
                raise ValueError(f"{field.name} must not be negative, got {value}")

    @property
    def total_tokens(self) -> int:
        """All input plus all output: what a token budget counts."""
        return self.input_tokens + self.output_tokens

    def __bool__(self) -> bool:
        return self.total_tokens > 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def as_dict(self) -> dict[str, int]:
        """The counts that are not zero, by name."""
        return {f.name: n for f in fields(self) if (n := getattr(self, f.name))}

    @classmethod
    def from_dict(cls, counts: Mapping[str, int]) -> Usage:
        return cls(**counts)
