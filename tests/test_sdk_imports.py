"""C74: a system check lists the imports of providers' SDKs that nothing meters."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.apps import AppConfig
from django.core.checks.registry import registry
from django.test import override_settings

from token_allowance import checks, sdk_imports

UNMETERED = "from openai import OpenAI\nclient = OpenAI()\n"
INSTALLED: list[AppConfig] = []
Write = Callable[[str, str], Path]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project on disk with one installed app, ``shop``, outside of BASE_DIR."""
    for name in ("base", "elsewhere/shop"):
        (tmp_path / name).mkdir(parents=True)
    module = ModuleType("shop")
    module.__path__ = [str(tmp_path / "elsewhere/shop")]
    (tmp_path / "elsewhere/shop/__init__.py").touch()
    config = AppConfig("shop", module)
    INSTALLED[:] = [config]
    monkeypatch.setattr(sdk_imports, "apps", SimpleNamespace(get_app_configs=lambda: INSTALLED))
    with override_settings(BASE_DIR=tmp_path / "base", SETTINGS_MODULE="base.settings"):
        yield tmp_path


@pytest.fixture
def write(project: Path) -> Write:
    """Writes a file; the folders on its way become packages."""

    def write(name: str, text: str) -> Path:
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.parents:
            if folder in (project, project / "base", project / "elsewhere"):
                break
            (folder / "__init__.py").touch()
        path.write_text(text)
        return path

    return write


def listed(**options: Any) -> list[tuple[str, int, str]]:
    return [(Path(f.path).name, f.line, f.sdk) for f in sdk_imports.find(**options)]


def messages() -> list[tuple[str, str]]:
    return [(m.msg, m.hint or "") for m in checks.check_sdk_imports() if m.id == "allowance.W006"]


def test_c74_a_file_that_goes_round_the_meter_is_named_with_its_line(write: Write) -> None:
    path = write("elsewhere/shop/answers.py", "import json\n\n" + UNMETERED)
    ((text, hint),) = messages()
    assert text.startswith(
        f"{path.resolve()}:3 imports openai, and nothing in that file is metered"
    )
    assert "allowance.meter(...)" in hint
    assert "silence allowance.W006" in hint


def test_it_is_part_of_an_ordinary_check_and_can_be_silenced(write: Write) -> None:
    ordinary: list[Any] = list(registry.get_checks())
    assert checks.check_sdk_imports in ordinary
    assert checks.check_more_sdk_imports not in ordinary
    write("elsewhere/shop/answers.py", UNMETERED)
    (found,) = checks.check_sdk_imports()
    assert not found.is_silenced()
    with override_settings(SILENCED_SYSTEM_CHECKS=["allowance.W006"]):
        assert found.is_silenced()


@pytest.mark.parametrize(
    ("text", "line", "sdk"),
    [
        (UNMETERED, 1, "openai"),
        ("import os, openai\nopenai.api_key = 'k'\n", 1, "openai"),
        ("import openai as sdk\ndef f():\n    return sdk.OpenAI()\n", 1, "openai"),
        (
            "def f():\n    from anthropic import Anthropic\n    Anthropic()\n",
            2,
            "anthropic",
        ),
        ("from anthropic.lib import streaming\n", 1, "anthropic"),
        ("import groq\ngroq.Groq()\n", 1, "groq"),
        ("from mistralai import Mistral\n", 1, "mistralai"),
        ("import ollama\nollama.chat(model='m')\n", 1, "ollama"),
        ("from google import genai\n", 1, "google.genai"),
        ("import google.genai\ngoogle.genai.Client()\n", 1, "google.genai"),
        ("from google.genai import Client\n", 1, "google.genai"),
        ("import google.generativeai as genai\ngenai.configure()\n", 1, "google.generativeai"),
        ("import cohere\ncohere.ClientV2()\n", 1, "cohere"),
        ("from litellm import completion\n", 1, "litellm"),
        ("import boto3\nboto3.client('bedrock-runtime')\n", 1, "boto3"),
        ("try:\n    import openai\nexcept ImportError:\n    openai = None\n", 2, "openai"),
        ("from openai import OpenAI, RateLimitError\n", 1, "openai"),
    ],
)
def test_an_import_that_calls_can_be_made_through_is_seen(text: str, line: int, sdk: str) -> None:
    assert sdk_imports.read(text.encode()) == (line, sdk)


@pytest.mark.parametrize(
    "text",
    [
        "from token_allowance import allowance\n" + UNMETERED,
        "import token_allowance.allowance\n" + UNMETERED,
        UNMETERED + "def f():\n    from token_allowance import allowance\n",
        "from shop.budgets import allowance\n" + UNMETERED,
        UNMETERED + "client = budgets.meter(client)\n",
        "from openai import RateLimitError, APIStatusError\n",
        "import openai\ntry:\n    pass\nexcept openai.RateLimitError:\n    pass\n",
        "from openai.types.chat import ChatCompletion\n",
        "from openai import types, NOT_GIVEN\n",
        "from google.genai import types\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from openai import OpenAI\n",
        "import typing\nif typing.TYPE_CHECKING:\n    from openai import OpenAI\n",
        "from . import openai\nfrom .openai import OpenAI\n",
        "from shop.providers import openai\n",
        "import openai_tools\n",
        "import boto3\nboto3.client('s3')\n",
        "from google import auth\n",
        "# import openai\ntext = 'import openai'\n",
        "this is not Python, openai\n",
        "\x00 openai",
        "",
    ],
)
def test_one_that_is_metered_or_harmless_is_not(text: str) -> None:
    assert sdk_imports.read(text.encode()) is None


def test_the_folders_of_a_project_that_are_its_own_are_read(write: Write, project: Path) -> None:
    for name in (
        "elsewhere/shop/deep/one.py", "base/two.py", "base/services/three.py",
        "elsewhere/shop/tests/no.py", "elsewhere/shop/test_no.py", "elsewhere/shop/no_test.py",
        "elsewhere/shop/tests.py", "elsewhere/shop/conftest.py", "elsewhere/shop/migrations/no.py",
        "base/tests/no.py", "base/token_allowance/no.py",
    ):  # fmt: skip
        write(name, UNMETERED)
    for folder in (".venv/lib/site-packages/other", "venv/bin", "data", "node_modules/x"):
        (project / "base" / folder).mkdir(parents=True)
        (project / "base" / folder / "no.py").write_text(UNMETERED)
    assert listed() == [("one.py", 1, "openai"), ("three.py", 1, "openai"), ("two.py", 1, "openai")]


def test_an_app_from_the_package_index_is_not_the_projects_own(write: Write, project: Path) -> None:
    write("elsewhere/shop/one.py", UNMETERED)
    installed = ModuleType("helpdesk")
    installed.__path__ = [str(project / "lib/site-packages/helpdesk")]
    write("lib/site-packages/helpdesk/no.py", UNMETERED)
    INSTALLED.append(AppConfig("helpdesk", installed))
    assert [name for name, _, _ in listed()] == ["one.py"]


def test_the_package_of_the_settings_is_read_wherever_it_is(
    write: Write, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ModuleType("website")
    package.__path__ = [str(project / "src/website")]
    monkeypatch.setitem(sys.modules, "website", package)
    write("src/website/views.py", UNMETERED)
    with override_settings(SETTINGS_MODULE="website.settings"):
        assert listed() == [("views.py", 1, "openai")]


def test_only_the_apps_asked_for_are_read(write: Write) -> None:
    write("elsewhere/shop/one.py", UNMETERED)
    write("base/two.py", UNMETERED)
    assert [name for name, _, _ in listed(configs=INSTALLED)] == ["one.py"]
    assert listed(configs=[]) == []


def test_a_huge_file_is_left_out_and_a_changed_one_is_read_again(write: Write) -> None:
    path = write("elsewhere/shop/one.py", UNMETERED + "#" * sdk_imports.LARGEST_BYTES)
    assert listed() == []
    path.write_text("\n" + UNMETERED)
    assert listed() == [("one.py", 2, "openai")]
    path.write_text("from token_allowance import allowance\n" + UNMETERED)
    assert listed() == []


def test_what_an_ordinary_check_leaves_out_is_read_for_deployment(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in range(4):
        write(f"elsewhere/shop/part_{place}.py", UNMETERED)
    monkeypatch.setattr(sdk_imports, "MOST_FILES", 3)  # __init__ and two more
    assert [m.msg.count("part_") for m in checks.check_sdk_imports()] == [1, 1]
    assert [m.msg.count("part_") for m in checks.check_more_sdk_imports()] == [1, 1]


def test_of_many_files_some_are_named_and_the_rest_counted(write: Write) -> None:
    for place in range(checks.SHOWN + 3):
        write(f"elsewhere/shop/part_{place:02}.py", "import cohere\ncohere.ClientV2()\n")
    found = messages()
    assert len(found) == checks.SHOWN
    assert found[-1][0].endswith("3 more files do so.")
    assert "allowance.call(...)" in found[0][1]


def test_an_ordinary_check_of_a_thousand_files_is_no_burden(write: Write) -> None:
    for place in range(1_000):
        write(f"elsewhere/shop/part_{place}.py", "import json\n\n\ndef f():\n    return 1\n" * 100)
    began = time.perf_counter()
    assert listed() == []
    assert time.perf_counter() - began < 2  # 0.06 where nothing else runs
