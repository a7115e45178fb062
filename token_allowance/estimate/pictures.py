"""Pictures: their size, read from their first bytes, and the tokens each family makes of it.

The formulas are those the providers publish; the table names the model they hold for. They are
data: a new model is a new line.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import unpack_from
from typing import Final, NamedTuple, Protocol


class Size(NamedTuple):
    """In pixels."""

    width: int
    height: int

    def within(self, longest: int) -> Size:
        """Scaled down until no side is longer, rounded up."""
        if max(self) <= longest:
            return self
        return Size(*(max(1, -(-side * longest // max(self))) for side in self))

    def pieces(self, side: int) -> int:
        """How many squares of this side cover it."""
        return -(-self.width // side) * -(-self.height // side)


class Formula(Protocol):
    def tokens(self, size: Size, *, low_detail: bool = False) -> int: ...


@dataclass(frozen=True, slots=True)
class Tiles:
    """OpenAI: fitted into a square, scaled until the short side fits, cut into tiles."""

    base: int
    each: int
    longest: int = 2048
    shortest: int = 768
    side: int = 512

    def tokens(self, size: Size, *, low_detail: bool = False) -> int:
        if low_detail:
            return self.base
        size = size.within(self.longest)
        if min(size) > self.shortest:
            size = Size(*(-(-side * self.shortest // min(size)) for side in size))
        return self.base + self.each * size.pieces(self.side)


@dataclass(frozen=True, slots=True)
class Patches:
    """OpenAI's smaller models: patches of 32 pixels, up to a number, times hundredths."""

    hundredths: int
    most: int = 1536
    side: int = 32

    def tokens(self, size: Size, *, low_detail: bool = False) -> int:
        return -(-min(self.most, size.pieces(self.side)) * self.hundredths // 100)


@dataclass(frozen=True, slots=True)
class Area:
    """Anthropic: a token for so many pixels, after scaling to its longest side."""

    pixels: int = 750
    longest: int = 2576
    most: int = 4784

    def tokens(self, size: Size, *, low_detail: bool = False) -> int:
        size = size.within(self.longest)
        return min(self.most, -(-size.width * size.height // self.pixels))


@dataclass(frozen=True, slots=True)
class Squares:
    """Gemini: a small picture is one square, a larger one is cut into squares."""

    each: int = 258
    small: int = 384
    side: int = 768

    def tokens(self, size: Size, *, low_detail: bool = False) -> int:
        return self.each if max(size) <= self.small else self.each * size.pieces(self.side)


@dataclass(frozen=True, slots=True)
class Flat:
    """The same for every picture."""

    each: int

    def tokens(self, size: Size, *, low_detail: bool = False) -> int:
        return self.each


@dataclass(frozen=True, slots=True)
class Dearest:
    """Of several: for models of which nothing is known."""

    formulas: tuple[Formula, ...]

    def tokens(self, size: Size, *, low_detail: bool = False) -> int:
        return max(formula.tokens(size) for formula in self.formulas)


_OPENAI: Final = Tiles(85, 170)
_FAMILIES: Final[dict[str, Formula]] = {
    "openai": _OPENAI,
    "anthropic": Area(),
    "gemini": Squares(),
    "default": Dearest((_OPENAI, Area(), Squares())),
}
_MODELS: Final[dict[str, Formula]] = {  # by the beginning of the name; the longest wins
    "gpt-4o-mini": Tiles(2833, 5667),
    "gpt-4.1-mini": Patches(162),
    "gpt-4.1-nano": Patches(246),
    "gpt-5-mini": Patches(162),
    "gpt-5-nano": Patches(246),
    "o4-mini": Patches(172),
    "gemini-3": Flat(1120),
    "gemini-4": Flat(1120),
}


def picture_tokens(size: Size, family: str, model: str = "", *, low_detail: bool = False) -> int:
    """Tokens of a picture of this size for a model, else for a family of models."""
    found = max((name for name in _MODELS if model.startswith(name)), key=len, default="")
    formula = _MODELS[found] if found else _FAMILIES[family]
    return formula.tokens(size, low_detail=low_detail)


def picture_size(head: bytes) -> Size | None:
    """The size of a PNG, GIF, WebP or JPEG by its first 64 KB; None for anything else."""
    for read in (_png, _gif, _webp, _jpeg):
        if (size := read(head)) and all(0 < side <= _LONGEST_SIDE for side in size):
            return size
    return None


_LONGEST_SIDE: Final = 100_000  # no provider takes a picture of more


def _png(head: bytes) -> Size | None:
    if len(head) < 24 or not head.startswith(b"\x89PNG\r\n\x1a\n"):
        return None
    return Size(*unpack_from(">II", head, 16))


def _gif(head: bytes) -> Size | None:
    if len(head) < 10 or not head.startswith((b"GIF87a", b"GIF89a")):
        return None
    return Size(*unpack_from("<HH", head, 6))


def _webp(head: bytes) -> Size | None:
    if len(head) < 30 or head[:4] != b"RIFF" or head[8:12] != b"WEBP":
        return None
    match head[12:16]:
        case b"VP8X":
            width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            width, height = (side & 0x3FFF for side in unpack_from("<HH", head, 26))
        case _:
            return None
    return Size(width, height)


_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE: Final = frozenset((0x01, 0xFF, *range(0xD0, 0xD9)))  # markers without a length


def _jpeg(head: bytes) -> Size | None:
    if not head.startswith(b"\xff\xd8"):
        return None
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if marker in _BARE:
            at += 1 if marker == 0xFF else 2
            continue
        if marker in _FRAMES:
            height, width = unpack_from(">HH", head, at + 5)
            return Size(width, height)
        at += 2 + max(2, int.from_bytes(head[at + 2 : at + 4]))
    return None
