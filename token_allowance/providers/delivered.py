"""How much of an answer the caller has received, for streams that end before their usage."""

from __future__ import annotations

from token_allowance.estimate import message_tokens, text_tokens

# Deltas are a few characters each, and an estimate is rounded up: estimated one by one they would
# count twice. Joined to pieces of this size the rounding is below one in a thousand.
_PIECE_CHARACTERS = 2048


class Delivered:
    """Estimates the tokens of delivered text. Holds one short piece of it at a time, no more."""

    def __init__(self, family: str) -> None:
        self._family = family
        self._counted_tokens = 0
        self._piece: list[str] = []
        self._piece_characters = 0
        self.characters = 0

    def add(self, text: object) -> None:
        """Count a piece of text; what is no text, or empty, is nothing."""
        if not isinstance(text, str) or not text:
            return
        self.characters += len(text)
        self._piece.append(text)
        self._piece_characters += len(text)
        if self._piece_characters >= _PIECE_CHARACTERS:
            self._counted_tokens = self.tokens
            self._piece = []
            self._piece_characters = 0

    def add_value(self, value: object) -> None:
        """Count a decoded JSON value, such as the input of a tool."""
        if value:
            self.characters += 1
            self._counted_tokens += message_tokens(value, self._family)

    @property
    def any(self) -> bool:
        return self.characters > 0

    @property
    def tokens(self) -> int:
        if not self._piece:
            return self._counted_tokens
        return self._counted_tokens + text_tokens("".join(self._piece), self._family)
