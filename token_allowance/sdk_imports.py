"""Imports of providers' SDKs in a project's own source that nothing there meters (case C74)."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

from django.apps import AppConfig, apps
from django.conf import settings

#: Packages whose clients ``allowance.meter`` takes, or an httpx client of its own inside them.
METERED: Final = ("openai", "anthropic", "groq", "mistralai", "ollama", "google.genai")
#: Packages whose calls are reserved by hand.
BY_HAND: Final = ("boto3", "cohere", "google.generativeai", "litellm")
BEDROCK: Final = "bedrock-runtime"  # what makes boto3 a provider's SDK
OURS: Final = ("token_allowance", "token_allowance_dashboard")
WORDS: Final = tuple(name.rpartition(".")[2].encode() for name in (*METERED, *BY_HAND))
INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
SKIPPED: Final = frozenset({"tests", "test", "migrations", *INSTALLED, *OURS})
HARMLESS: Final = re.compile(r"(Error|Exception|Warning|Params?|NOT_GIVEN|NotGiven|[Oo]mit)$")
HARMLESS_MODULES: Final = frozenset({"types", "_types", "errors", "exceptions", "_exceptions"})
LARGEST_BYTES: Final = 500_000
MOST_FILES = 2_000  # of an ordinary check: about a tenth of a second


@dataclass(frozen=True, slots=True)
class Found:
    """The first import of an SDK in a file."""

    path: str
    line: int
    sdk: str

    @property
    def by_hand(self) -> bool:
        return self.sdk in BY_HAND


def find(
    configs: Iterable[AppConfig] | None = None, *, start: int = 0, stop: int | None = None
) -> list[Found]:
    """The project's files that import an SDK and do not mention ours; no query, nothing imported.

    Looked at are the installed apps outside of site-packages, the package of the settings, and the
    packages and modules in BASE_DIR; or only these apps. Not their tests and migrations. ``start``
    and ``stop`` choose among the files as they are found.
    """
    found = []
    for path in islice(_files(_roots(configs)), start, stop):
        try:
            state = os.stat(path)
            seen = _seen(path, state.st_mtime_ns, state.st_size)
        except OSError:
            continue
        if seen is not None:
            found.append(Found(path, *seen))
    return found


def read(source: bytes) -> tuple[int, str] | None:
    """Line and SDK of the first import that leads round the meter; None too if it is no Python."""
    if not any(word in source for word in WORDS):
        return None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    nodes = list(_running(tree))
    if any(_is_metered(node) for node in nodes):
        return None
    hits = sorted(hit for node in nodes for hit in _hits(node, nodes))
    return hits[0] if hits else None


@lru_cache(maxsize=MOST_FILES)
def _seen(path: str, changed: int, size: int) -> tuple[int, str] | None:
    if size > LARGEST_BYTES:
        return None
    with open(path, "rb", buffering=0) as file:
        return read(file.read())


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below this one, without what only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        yield child
        if isinstance(child, ast.If) and _for_types(child.test):
            for other in child.orelse:
                yield from _running(other)
        else:
            yield from _running(child)


def _for_types(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _is_metered(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] in OURS for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        ours = (node.module or "").partition(".")[0] in OURS and not node.level
        return ours or any(alias.name == "allowance" for alias in node.names)
    return isinstance(node, ast.Attribute) and node.attr == "meter"


def _hits(node: ast.AST, nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            sdk = _sdk(alias.name)
            bound = alias.asname or alias.name.partition(".")[0]
            if sdk and _reaches(sdk, alias.name, nodes) and not _only_harmless(bound, nodes):
                yield node.lineno, sdk
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for alias in node.names:
            module = f"{node.module}.{alias.name}"
            sdk = _sdk(module)
            if sdk and _reaches(sdk, module, nodes) and not HARMLESS.search(alias.name):
                yield node.lineno, sdk


def _sdk(module: str) -> str:
    return next((s for s in (*METERED, *BY_HAND) if f"{module}.".startswith(f"{s}.")), "")


def _reaches(sdk: str, module: str, nodes: list[ast.AST]) -> bool:
    """Can calls be made through this import? Not through its types and errors."""
    if sdk == "boto3":
        return any(isinstance(n, ast.Constant) and n.value == BEDROCK for n in nodes)
    return HARMLESS_MODULES.isdisjoint(module.removeprefix(sdk).split("."))


def _only_harmless(bound: str, nodes: list[ast.AST]) -> bool:
    """Is ``import openai`` there for its errors alone?"""
    named = [n for n in nodes if isinstance(n, ast.Name) and n.id == bound]
    used = [
        n.attr
        for n in nodes
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == bound
    ]
    harmless = (HARMLESS.search(name) or name in HARMLESS_MODULES for name in used)
    return len(used) == len(named) > 0 and all(harmless)


def _roots(configs: Iterable[AppConfig] | None) -> list[str]:
    chosen = apps.get_app_configs() if configs is None else configs
    own = [c.path for c in chosen if c.name.partition(".")[0] not in OURS]
    if configs is None:
        package = str(getattr(settings, "SETTINGS_MODULE", None) or "").rpartition(".")[0]
        own += getattr(sys.modules.get(package), "__path__", ())
        own += _in_folder(getattr(settings, "BASE_DIR", None))
    return [path for path in own if INSTALLED.isdisjoint(Path(path).parts)]


def _in_folder(base: Any) -> list[str]:
    """The modules and packages that stand there, where manage.py mostly does."""
    if not base or not Path(base).is_dir():
        return []
    found = sorted(Path(base).iterdir())
    return [str(p) for p in found if p.suffix == ".py" or (p / "__init__.py").is_file()]


def _files(roots: Iterable[str]) -> Iterator[str]:
    """Each file once. Only packages are entered, so that no folder of data is listed."""
    seen = set()
    for root in roots:
        for path in _below(os.path.realpath(root)):
            if path not in seen:
                seen.add(path)
                yield path


def _below(root: str) -> Iterator[str]:
    if os.path.isfile(root):
        if _is_code(os.path.basename(root)):
            yield root
        return
    if os.path.basename(root) in SKIPPED:
        return
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name
            for name in folders
            if name not in SKIPPED and os.path.isfile(os.path.join(folder, name, "__init__.py"))
        )
        yield from (os.path.join(folder, name) for name in sorted(names) if _is_code(name))


def _is_code(name: str) -> bool:
    stem, extension = os.path.splitext(name)
    test = stem in ("tests", "conftest") or stem.startswith("test_") or stem.endswith("_test")
    return extension == ".py" and not test
