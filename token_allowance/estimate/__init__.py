"""How many tokens a text, a picture or a request will be, guessed before it is sent."""

from __future__ import annotations

from token_allowance.estimate.counting import ORDINARY, Counting
from token_allowance.estimate.requests import message_tokens
from token_allowance.estimate.text import FAMILIES, most_tokens, text_tokens

__all__ = ["FAMILIES", "ORDINARY", "Counting", "message_tokens", "most_tokens", "text_tokens"]
