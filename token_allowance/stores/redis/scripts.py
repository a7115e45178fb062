"""The Lua scripts: one for each operation, each one atomic step."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files


class Script:
    """One script's text and the digest that Redis knows it by."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = files("token_allowance.stores").joinpath("lua", f"{name}.lua").read_bytes()
        self.sha = sha1(self.source, usedforsecurity=False).hexdigest().encode()


@cache
def script(name: str) -> Script:
    return Script(name)
