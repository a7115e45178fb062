"""Under which names the price of a model may be found."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

_SUFFIX: Final = re.compile(
    r"""(?<=.)(?:
        -latest
        | -(?:19|20)[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])
        | [-@](?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])
    )\Z""",
    re.VERBOSE,
)
_FINE_TUNED: Final = "ft:"
_NO_ALIASES: Final[Mapping[str, str]] = MappingProxyType({})


def name_candidates(model: str, aliases: Mapping[str, str] = _NO_ALIASES) -> list[str]:
    """The names under which the price of ``model`` may be found, best first.

    The name itself, its declared alias, then the name without a trailing date or ``-latest``
    (case C22). ``ft:base:org:name:id`` is also looked for as ``ft:base``, never as its base (case
    C24). Nothing is guessed from a prefix, and case matters (case C20).
    """
    names: dict[str, None] = {}
    _collect(model, aliases, names)
    return list(names)


def family(model: str) -> str:
    """The name without date or ``-latest``: what limits, switches and the ledger call a model."""
    return name_candidates(model)[-1]


def _collect(name: str, aliases: Mapping[str, str], names: dict[str, None]) -> None:
    if name in names:
        return
    names[name] = None
    if name in aliases:
        _collect(aliases[name], aliases, names)
    for shorter in _shortened(name):
        _collect(shorter, aliases, names)


def _shortened(name: str) -> Iterator[str]:
    if suffix := _SUFFIX.search(name):
        yield name[: suffix.start()]
    if name.startswith(_FINE_TUNED):
        base, separator, _ = name.removeprefix(_FINE_TUNED).partition(":")
        if base and separator:
            yield _FINE_TUNED + base
