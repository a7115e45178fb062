"""Rules of style that are no matter of opinion."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
CODE = ("token_allowance", "dashboard", "project")
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b")
PIN = re.compile(r"^[a-z0-9-]+==[0-9][^\s;]*( ; .+)?$")


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "migrations" not in path.parts:
                yield path


def test_files_stay_small():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sources(*CODE)
        if (lines := len(path.read_text().splitlines())) > MAX_FILE_LINES
    }
    assert long == {}, "two nouns in one file?"


def test_functions_stay_small():
    long = {}
    for path in sources(*CODE):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long[f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"] = lines
    assert long == {}


def test_nothing_is_marked_as_unfinished():
    marked = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources(*CODE, "tests")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert marked == []


@pytest.mark.parametrize("name", ["demo.txt", "sdks.txt", "test.txt"])
def test_requirements_pin_versions_and_name_no_host(name):
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    assert lines
    assert [line for line in lines if not PIN.match(line)] == []
    assert [line for line in lines if "/" in line or "@" in line] == []


def test_the_demo_installs_the_versions_that_are_tested():
    pins = ROOT / "requirements"
    demo = set((pins / "demo.txt").read_text().splitlines())
    assert demo - set((pins / "test.txt").read_text().splitlines()) == set()


def test_the_package_itself_is_empty():
    assert (ROOT / "token_allowance/__init__.py").read_text() == ""


def test_every_module_has_a_layer_in_the_import_contract():
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    layers = " ".join(tools["importlinter"]["contracts"][0]["layers"])
    modules = {
        path.stem
        for path in (ROOT / "token_allowance").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    named = set(re.findall(r"token_allowance\.(\w+)", layers))
    assert modules - {"__init__"} - named == set(), "name its layer in pyproject.toml"
